package main

// The suites: the columns of the matrix. When tests move, their lines here move along.

// A suite is some tests of one package.
type suite struct {
	name  string
	dir   string // of the package
	tests string // a pattern of test names, or a file: its tests
	of    kind   // the mistakes that it is to find
	flags []string
}

var suites = []suite{
	{name: "stories", dir: "internal/lua", tests: "^TestStories$", of: scripts},
	{name: "semaphore-model", dir: "internal/lua", tests: "semaphore_model_test.go", of: scripts},
	{name: "fair-model", dir: "internal/lua", tests: "fair_model_test.go", of: scripts},
	{name: "line-rules", dir: "internal/lua", tests: "line_rules_test.go", of: scripts},
	{name: "short-cuts", dir: "internal/lua", tests: "shortcuts_test.go", of: scripts},
	{name: "script-faults", dir: "internal/lua", tests: "scriptfaults_test.go", of: scripts},
	{name: "scripts", dir: "internal/lua", tests: "scripts_test.go", of: scripts},
	{name: "conformance", dir: "tests/locks", tests: "^(TestLock|TestFencedLock|TestFairLock|TestFencedFairLock|TestReadLock|" +
		"TestWriteLock|TestFencedWriteLock|TestSemaphore|TestMultiLock)$", of: scripts | code},
	{name: "line-grants", dir: "tests/locks", tests: "line_grants_test.go", of: scripts | code},
	{name: "line-leaving", dir: "tests/locks", tests: "line_leaving_test.go", of: scripts | code},
	{name: "line-expiry", dir: "tests/locks", tests: "line_expiry_test.go", of: scripts},
	{name: "line-java", dir: "tests/locks", tests: "line_java_test.go", of: scripts | code},
	{name: "line-rights", dir: "tests/locks", tests: "line_rights_test.go", of: scripts},
	{name: "line-rw", dir: "tests/locks", tests: "line_rw_test.go", of: scripts},
	{name: "fair-grants", dir: "tests/locks", tests: "fair_grants_test.go", of: scripts},
	{name: "fair-dead", dir: "tests/locks", tests: "fair_dead_test.go", of: scripts},
	{name: "fair-java", dir: "tests/locks", tests: "fair_java_test.go", of: scripts},
	{name: "rwlock-line", dir: "tests/locks", tests: "rwlock_line_test.go", of: scripts},
	{name: "semaphore-line", dir: "tests/locks", tests: "semaphore_line_test.go", of: scripts},
	{name: "semaphore-several", dir: "tests/locks", tests: "semaphore_several_test.go", of: scripts},
	{name: "tombstones", dir: "tests/locks", tests: "tombstones_test.go", of: scripts | code},
	{name: "tokens", dir: "tests/locks", tests: "tokens_test.go", of: scripts | code},
	{name: "rwlock", dir: "tests/locks", tests: "rwlock_test.go", of: scripts},
	{name: "rwlock-upgrade", dir: "tests/locks", tests: "rwlock_upgrade_test.go", of: scripts},
	{name: "semaphore", dir: "tests/locks", tests: "semaphore_test.go", of: scripts},
	{name: "permits-set", dir: "tests/locks", tests: "permits_set_test.go", of: scripts},
	{name: "fair", dir: "tests/locks", tests: "fair_test.go", of: scripts},
	{name: "polls", dir: "tests/locks", tests: "poller_test.go", of: scripts},
	{name: "detach", dir: "tests/locks", tests: "detach_test.go", of: scripts},
	{name: "detach-faults", dir: "tests/faults", tests: "detach_faults_test.go", of: scripts},
	{name: "virtual", dir: "tests/virtual", tests: "virtual_test.go", of: code},
	{name: "virtual-multilock", dir: "tests/virtual", tests: "virtual_multilock_test.go", of: code},
	{name: "virtual-redlock", dir: "tests/virtual", tests: "virtual_redlock_test.go", of: code},
	{name: "virtual-grants", dir: "tests/virtual", tests: "virtual_grants_test.go", of: code},
	{name: "engine", dir: "internal/engine", tests: ".", of: code},
	{name: "send", dir: "internal/send", tests: ".", of: code},
	{name: "wake", dir: "internal/wake", tests: ".", of: code},
	{name: "lease", dir: "internal/lease", tests: ".", of: code},
	{name: "tenancy", dir: "internal/tenancy", tests: ".", of: code},
	{name: "late", dir: "internal/late", tests: ".", of: code},
	{name: "poller", dir: "internal/poller", tests: ".", of: code},
	{name: "guard", dir: "internal/guard", tests: ".", of: code},
	{name: "handoff", dir: "internal/handoff", tests: ".", of: code},
	{name: "simulator", dir: "internal/sim", tests: "^TestSimulation$", of: scripts | code, flags: []string{"-sim.count=20"}},
}
