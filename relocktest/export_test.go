package relocktest

// SetLogger sets the logger of go-redis again.
var SetLogger = setLogger
