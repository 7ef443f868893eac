module github.com/interlock-go/interlock/watermilllock

go 1.26.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.1 // the example: AddConsumerHandler
	github.com/interlock-go/interlock v0.0.0
	go.opentelemetry.io/otel v1.31.0 // as in the root
	go.opentelemetry.io/otel/trace v1.31.0 // tests
	go.uber.org/goleak v1.3.0 // as in the root
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/sony/gobreaker v1.0.0 // indirect
)

replace github.com/interlock-go/interlock => ../
