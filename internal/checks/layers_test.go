package checks_test

// layer lists the imports that some packages may have next to the standard library.
// Paths of this module begin with "./"; a pattern that ends with "/..." is the
// package and all below it.
type layer struct {
	packages string
	imports  []string
	reason   string
}

// layers are the module's, the most particular first: the first that fits a package is its
// rule. Tests may import any package.
var layers = []layer{
	{
		"./core/redisstore",
		[]string{"./core/driver", "./core/internal/...", "./core/idempotency/record", "github.com/redis/go-redis/v9/..."},
		"a store is the core's contract on go-redis, and knows nothing of requests",
	},
	{
		"./core/quorum",
		[]string{"./core/driver", "./core/internal/...", "github.com/redis/go-redis/v9/..."},
		"a store is the core's contract on go-redis, and knows nothing of requests",
	},
	{
		"./core/fleet",
		[]string{"./core/driver", "./core/idempotency/record", "./core/internal/...", "github.com/redis/go-redis/v9/..."},
		"what tools read is the store's layout in Redis, and knows nothing of requests",
	},
	{
		"./core/fencing/redisfence",
		[]string{"./core", "./core/fencing", "github.com/redis/go-redis/v9/..."},
		"fenced values are go-redis and the fencing that databases have too, and know no store of locks",
	},
	{
		"./core/casstore/castest",
		[]string{"./core/casstore", "./core/driver"}, // the contract names an error of the driver's
		"the test suite of the contract serves the authors of adapters: the contract and the standard library only",
	},
	{
		"./core/casstore",
		[]string{"./core/driver", "./core/driver/keystate", "./core/internal/..."},
		"what stores on consensus systems share brings no client of one: the standard library only",
	},
	{
		"./core/pgstore",
		[]string{"./core", "./core/driver", "./core/fencing", "./core/gather", "./core/idempotency/record", "./core/internal/..."},
		"a store in PostgreSQL takes any driver of database/sql, and so brings none",
	},
	{
		"./core/gather",
		[]string{"./core", "./core/observe", "./core/internal/..."},
		"a section of many callers takes its locks from the core, and transactions from database/sql",
	},
	{
		"./core/alongside",
		[]string{"./core"},
		"a lock of any library is three functions, so that no library comes with the package",
	},
	{
		"./core/fencing",
		[]string{"./core"},
		"a fence takes any driver of database/sql, and so brings none",
	},
	{
		"./core/idempotency",
		[]string{
			"./core", "./core/driver", "./core/observe", "./core/reason", "./core/internal/...",
			"./core/idempotency/admin", "./core/idempotency/endpoint", "./core/idempotency/record",
		},
		"idempotency is framework-neutral: it can be read with the core and the standard library only",
	},
	{
		"./core/idempotency/once",
		[]string{
			"./core", "./core/adapter", "./core/observe", "./core/reason", "./core/internal/...",
			"./core/idempotency", "./core/idempotency/endpoint",
		},
		"a function is a request without a protocol: it uses the engine as an adapter does",
	},
	{
		"./core/idempotency/explore",
		[]string{
			"./core", "./core/idempotency", "./core/idempotency/endpoint", "./core/idempotency/once", "./core/idempotency/record",
			"./core/memstore", "./core/reason", "./internal/bubble",
		},
		"the tests of users bring no framework: the core and the standard library only",
	},
	{
		"./core/idempotency/admin",
		[]string{"./core/idempotency/endpoint"},
		"what operators read is below the engine",
	},
	{
		"./core/idempotency/endpoint",
		[]string{"./core"},
		"what the author of an adapter reads is below the engine: the core and the standard library only",
	},
	{
		"./core/idempotency/record",
		[]string{"./core/driver", "./core/internal/carrier"},
		"the contract of a store of records can be read, and imported, without the engine: the standard library only",
	},
	{
		"./core/idempotency/record/recordtest",
		[]string{"./core/driver", "./core/idempotency/record"},
		"the test suite of the contract serves the authors of stores: the contract and the standard library only",
	},
	{
		"./core/internal/redisrecords",
		[]string{"./core/driver", "./core/idempotency/record", "./core/internal/...", "github.com/redis/go-redis/v9/..."},
		"the records in Redis are read for the store and for tools, by the layout of the scripts",
	},
	{
		"./core/internal/rediswire",
		[]string{"./core/driver", "./core/internal/...", "github.com/redis/go-redis/v9/..."},
		"it is what the stores on Redis share, and knows the requests for locks only",
	},
	{
		"./core/internal/requests",
		[]string{"./core/adapter"},
		"it wraps what the author of an adapter makes, and knows no more of the core",
	},
	{
		"./core/internal/host",
		[]string{"./core/driver", "./core/internal/logs"},
		"it is what stores share that call lockers and work in the background, whatever their server is",
	},
	{
		"./core/internal/pglock",
		[]string{"./core/driver", "./core/driver/keystate", "./core/internal/..."},
		"it keeps locks on PostgreSQL, by the rules: the standard library only",
	},
	{
		"./core/internal/...",
		[]string{"./core/driver", "./core/internal/..."},
		"parts of the core are below it: the standard library only",
	},
	{
		"./internal/steptrial",
		[]string{"./core/driver", "./core/idempotency", "./core/idempotency/admin", "./core/idempotency/endpoint", "./core/idempotency/record"},
		"a trial of the engine runs on every store: the engine and its contract only",
	},
	{
		"./core/adapter/adaptertest",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/memstore", "./core/observe", "./core/reason", "./internal/testkit"},
		"the test suite of adapters serves authors elsewhere: it brings no framework",
	},
	{
		"./core/idempotency/endpoint/endpointtest",
		[]string{"./core/adapter/adaptertest", "./internal/idemcases/..."},
		"the test suite of idempotent endpoints serves authors elsewhere: it brings no framework",
	},
	{
		"./core/adapter",
		[]string{"./core/internal/carrier"},
		"what the author of an adapter reads is below the core: the standard library only",
	},
	{
		"./core/reason", nil,
		"the reasons can be read, and imported, on their own: the standard library only",
	},
	{
		"./core/observe",
		[]string{"./core/internal/ident"},
		"what the author of an observer reads is below the core: the standard library only",
	},
	{
		"./core/driver", nil,
		"the contract of a store can be read, and imported, on its own: the standard library only",
	},
	{
		"./core/driver/drivertest",
		[]string{"./core/driver"},
		"the test suite of the contract serves the authors of stores: the contract and the standard library only",
	},
	{
		"./core/driver/keystate",
		[]string{"./core/driver"},
		"the rules of a lock know no store and no clock: the contract and the standard library only",
	},
	{
		"./core/memstore",
		[]string{"./core/driver", "./core/driver/keystate", "./core/idempotency/record"},
		"the store for tests is both contracts in memory: the standard library only",
	},
	{
		"./core",
		[]string{"./core/adapter", "./core/driver", "./core/observe", "./core/reason", "./core/internal/..."},
		"the core can be read, and imported, on its own: the standard library only",
	},

	// An adapter brings its own framework along and no other: a server of REST
	// compiles no gRPC. Nor does it bring a store: that is the application's.
	{
		"./httplock/...",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/..."},
		"httplock serves net/http, of which the standard library is all",
	},
	{
		"./ginlock/...",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/...", "github.com/gin-gonic/gin/..."},
		"an adapter imports the core, internal packages and its own framework",
	},
	{
		"./echolock/...",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/...", "github.com/labstack/echo/..."},
		"an adapter imports the core, internal packages and its own framework",
	},
	{"./grpclock/...", []string{
		"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/...", "./grpclock/...",
		"google.golang.org/grpc/...", "google.golang.org/protobuf/...", "google.golang.org/genproto/googleapis/rpc/...",
	}, "an adapter imports the core, internal packages and its own framework"},

	{"./otel", []string{
		"./core", "./core/observe", "./internal/version",
		"./core/driver", "./core/reason", // their errors
		"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/log/...", "go.opentelemetry.io/otel/metric/...", "go.opentelemetry.io/otel/propagation",
		"go.opentelemetry.io/otel/semconv/...", "go.opentelemetry.io/otel/trace/...",
	}, "which SDK and exporters there are is the application's choice: the OpenTelemetry API only"},

	{
		"./internal/capture",
		[]string{"./core", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/httpx"},
		"what the HTTP adapters share must not bring one's framework to the others",
	},
	{
		"./internal/lanes",
		[]string{"./core/driver"}, // the error for a request that was not sent
		"what the adapters for consensus systems share must not bring the client of one to the others",
	},
	{
		"./internal/redistest",
		[]string{"github.com/redis/go-redis/v9/...", "go.uber.org/goleak"},
		"the servers of the tests serve the core's tests too, which could not import what imports the core",
	},
	{"./internal/echox", []string{"github.com/labstack/echo/v4/..."}, "it is a part of echolock, and of no other package"},
	{"./internal/echox/v5", []string{"github.com/labstack/echo/v5/..."}, "it is a part of echolock/v5, and of no other package"},
	{"./internal/grpcx", []string{
		"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/asked", "./internal/uuid",
		"google.golang.org/grpc/...", "google.golang.org/protobuf/...", "google.golang.org/genproto/googleapis/rpc/...",
	}, "it is a part of grpclock and connectlock, and of no other package"},
	{"./internal/frameworks", []string{
		"./core/adapter/adaptertest", "./core/idempotency", "./httplock", "./grpclock", "./internal/frameworks/callspb",
		"google.golang.org/grpc/...", "google.golang.org/protobuf/...", "google.golang.org/genproto/googleapis/rpc/...",
	}, "it has one framework of each protocol, so that no other is compiled for the tests of each module"},
	{"./internal/frameworks/callspb", []string{
		"google.golang.org/grpc/...", "google.golang.org/protobuf/...",
	}, "it is generated from the service that all tests call"},
	{"./internal/frameworks/all", []string{
		"./core/adapter/adaptertest", "./ginlock", "./echolock/...", "./internal/frameworks", "github.com/gin-gonic/gin", "github.com/labstack/echo/...",
	}, "it is where the frameworks meet, and knows no store"},
	{
		"./internal/idemcases",
		[]string{
			"./core", "./core/adapter/adaptertest", "./core/gather", "./core/idempotency", "./core/idempotency/endpoint", "./core/idempotency/record", "./core/reason",
			"./internal/pace", "./internal/testkit",
		},
		"the cases of idempotent endpoints run on each store and over each framework, in more than one module, and so name none",
	},
	{
		"./internal/idemcases/inmemory",
		[]string{"./core", "./core/idempotency", "./core/memstore", "./internal/idemcases", "./internal/pace"},
		"the records in memory are for the cases of each module, and know no other store",
	},
	{"./internal/testkit/...", []string{
		"./core", "./core/driver", "./core/idempotency", "./core/memstore", "./internal/testkit/...",
	}, "what the tests of adapters share serves authors of adapters elsewhere, and so brings no framework"},

	{"./internal/display", nil, "what the pages share knows no lock"},
	{"./internal/version", nil, "the version is read from the build, and says nothing of the packages in it"},

	{
		"./internal/way",
		[]string{"./core", "./core/idempotency", "./core/redisstore", "./httplock", "github.com/redis/go-redis/v9/..."},
		"it counts what a request of httplock runs through on Redis",
	},

	{
		"./internal/...",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason", "./internal/..."},
		"what adapters share must not bring the framework of one to the others",
	},

	{
		"./interlockdebug",
		[]string{"./core", "./core/idempotency", "./core/idempotency/admin", "./core/observe", "./core/reason", "./internal/display"},
		"the page serves any application: the core and the standard library only",
	},
	{
		"./cmd/interlock/...",
		[]string{
			"./core/...", "./cmd/interlock/internal/...", "./internal/display", "./internal/version", "./etcdstore", "./natsstore", "./pgxstore", "./zkstore",
			"github.com/redis/go-redis/v9/...", "github.com/jackc/pgx/v5/...", "go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
			"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream",
			"go.uber.org/zap", // silences the client of etcd
		},
		"the tool is the core, the stores and their clients: who installs it compiles no framework",
	},
	{
		"./cmd/interlockvet/...",
		[]string{"./cmd/interlockvet/analyzer", "golang.org/x/tools/go/..."},
		"the analyzer reads code: it compiles no package that the code uses",
	},
	{
		"./asynqlock",
		[]string{"./core", "./core/adapter", "./core/idempotency/...", "./core/observe", "./core/reason", "github.com/hibiken/asynq", "go.opentelemetry.io/otel/propagation"},
		"a handler of asynq brings asynq and the core, and no store",
	},
	{
		"./riverlock",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/once", "./core/reason", "github.com/riverqueue/river", "github.com/riverqueue/river/rivertype", "go.opentelemetry.io/otel/propagation"},
		"a worker of River brings River and the core, and no store",
	},
	{
		"./gocronlock",
		[]string{"./core", "github.com/go-co-op/gocron/v2"},
		"a schedule of gocron brings gocron and the core, and no store",
	},
	{
		"./watermilllock",
		[]string{"./core", "./core/adapter", "./core/idempotency/...", "./core/observe", "./core/reason", "github.com/ThreeDotsLabs/watermill/message", "go.opentelemetry.io/otel/propagation"},
		"a middleware of Watermill brings its messages and the core, and no store",
	},
	{
		"./connectlock",
		[]string{
			"./core", "./grpclock", "./grpclock/lockpb", "./internal/grpcx", "connectrpc.com/connect/v2/...",
			"google.golang.org/grpc/...", "google.golang.org/protobuf/...", "google.golang.org/genproto/googleapis/rpc/...",
		},
		"connect is grpclock on another transport: it brings connect and what grpclock has",
	},
	{
		"./mcplock",
		[]string{
			"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint", "./core/reason",
			"github.com/modelcontextprotocol/go-sdk/mcp", "github.com/modelcontextprotocol/go-sdk/jsonrpc",
		},
		"a server of tools brings the SDK of its protocol and the core, and no store",
	},
	{
		"./tuslock",
		[]string{"./core", "./core/adapter", "./core/reason", "github.com/tus/tusd/v2/pkg/handler"},
		"a locker of tusd brings its interfaces and the core, and no store",
	},
	{
		"./etcdstore",
		[]string{"./core/casstore", "./core/driver", "./internal/lanes", "go.etcd.io/etcd/api/v3/...", "go.etcd.io/etcd/client/v3", "google.golang.org/grpc", "google.golang.org/grpc/metadata"},
		"who has an etcd gets its client, which has grpc, and the core, and no other library",
	},
	{
		"./zkstore",
		[]string{"./core/casstore", "./core/driver", "./internal/lanes", "github.com/go-zookeeper/zk"},
		"who has a ZooKeeper gets its client and the core, and no other library",
	},
	{
		"./natsstore",
		[]string{"./core/casstore", "./core/driver", "./internal/lanes", "github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream"},
		"who has a NATS gets its client and the core, and no other library",
	},
	{
		"./pgxstore",
		[]string{"./core/...", "github.com/jackc/pgx/v5/..."},
		"who has a pool of pgx gets pgx and the core, and no other library",
	},
	{
		"./examples/adapter",
		[]string{"./core", "./core/adapter", "./core/idempotency", "./core/idempotency/endpoint"},
		"it shows what the author of an adapter elsewhere can use: public packages",
	},
	{"./examples/...", []string{"..."}, ""}, // programs
	{".", nil, "the root is the overview; only its tests, and examples, import everything"},
}

// testOnly are packages that nothing but tests, and each other, may import,
// also where the layers would allow it.
var testOnly = []string{
	"./internal/redistest", "./internal/logtest", "./internal/pace", "./internal/drawn", "./internal/testkit/...", "./internal/frameworks/...", "./internal/idemcases/...",
	"./core/adapter/adaptertest", "./core/idempotency/endpoint/endpointtest", "./internal/way", "./examples/internal/servicetest",
}
