module github.com/interlock-go/interlock/gocronlock

go 1.26.0

require (
	github.com/go-co-op/gocron/v2 v2.6.0 // tests: AfterLockError
	github.com/google/uuid v1.6.0 // tests: as gocron
	github.com/interlock-go/interlock v0.0.0
	github.com/jonboulle/clockwork v0.4.0 // tests: as gocron
	go.uber.org/goleak v1.3.0 // as in the root
)

require (
	github.com/robfig/cron/v3 v3.0.1 // indirect
	golang.org/x/exp v0.0.0-20240416160154-fe59bbe5cc7f // indirect
)

replace github.com/interlock-go/interlock => ../
