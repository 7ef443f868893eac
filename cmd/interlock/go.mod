module github.com/interlock-go/interlock/cmd/interlock

go 1.26.0

replace (
	github.com/interlock-go/interlock => ../../
	github.com/interlock-go/interlock/core/casstore => ../../core/casstore
	github.com/interlock-go/interlock/etcdstore => ../../etcdstore
	github.com/interlock-go/interlock/natsstore => ../../natsstore
	github.com/interlock-go/interlock/pgxstore => ../../pgxstore
	github.com/interlock-go/interlock/zkstore => ../../zkstore
)

require (
	github.com/go-zookeeper/zk v1.0.4 // as in zkstore
	github.com/interlock-go/interlock v0.0.0
	github.com/interlock-go/interlock/core/casstore v0.0.0
	github.com/interlock-go/interlock/etcdstore v0.0.0
	github.com/interlock-go/interlock/natsstore v0.0.0
	github.com/interlock-go/interlock/pgxstore v0.0.0
	github.com/interlock-go/interlock/zkstore v0.0.0
	github.com/jackc/pgx/v5 v5.12.0 // as in pgxstore
	github.com/nats-io/nats.go v1.55.0 // as in natsstore
	github.com/redis/go-redis/v9 v9.23.0 // as in the root
	go.etcd.io/etcd/client/v3 v3.7.3 // as in etcdstore
	go.uber.org/goleak v1.3.0 // tests only
	go.uber.org/zap v1.27.1 // the log of the client of etcd
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.29.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/nats-io/nkeys v0.4.17 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	go.etcd.io/etcd/api/v3 v3.7.3 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.7.3 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260803160001-6ac0973c030d // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260803160001-6ac0973c030d // indirect
	google.golang.org/grpc v1.83.2 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
