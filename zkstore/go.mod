module github.com/interlock-go/interlock/zkstore

go 1.26.0

replace github.com/interlock-go/interlock => ../

require (
	github.com/go-zookeeper/zk v1.0.4 // not tried with an older version
	github.com/interlock-go/interlock v0.0.0
)
