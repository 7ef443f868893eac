module github.com/interlock-go/interlock/tuslock

go 1.26.0

require (
	github.com/interlock-go/interlock v0.0.0
	github.com/tus/tusd/v2 v2.9.1 // not tried with an older version
	go.uber.org/goleak v1.3.0 // as in the root
	golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8 // tests only: the logger of tusd
)

replace github.com/interlock-go/interlock => ../
