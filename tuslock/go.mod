module github.com/interlock-go/interlock/tuslock

go 1.26.0

require (
	github.com/interlock-go/interlock v0.0.0
	github.com/tus/tusd/v2 v2.9.1
	go.uber.org/goleak v1.3.0
	golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8
)

replace github.com/interlock-go/interlock => ../
