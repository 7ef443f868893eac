module github.com/interlock-go/interlock/core/casstore

go 1.26.0

replace github.com/interlock-go/interlock => ../../

require github.com/interlock-go/interlock v0.0.0
