package core

// guardConfig holds the options that only a guard has.
type guardConfig struct{}
