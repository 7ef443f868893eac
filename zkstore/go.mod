module github.com/interlock-go/interlock/zkstore

go 1.26.0

replace (
	github.com/interlock-go/interlock => ../
	github.com/interlock-go/interlock/core/casstore => ../core/casstore
)

require (
	github.com/go-zookeeper/zk v1.0.4 // not tried with an older version
	github.com/interlock-go/interlock v0.0.0
	github.com/interlock-go/interlock/core/casstore v0.0.0
)
