# What is done often. "make" says what there is; .ci/run is all of it, and more.
.DEFAULT_GOAL := help
.PHONY: help test race storm soak interop otel bench examples lint api tidy gate

GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
EXAMPLES    := quickstart stock cron leader cache tickets transfer redlock
TIME        ?= 60s

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: ## all tests of the root; those that need a redis-server are skipped without one
	go test ./...

race: ## the same under the race detector
	go test -race ./...

storm: ## random work under random faults; TIME=10m for longer
	go test -run '^TestStorm$$' -storm=$(TIME) -timeout=0 -parallel 8 -v .

soak: ## every kind of lock at full speed for a while; TIME=30m for longer
	go test -run '^TestSoak$$' -soak=$(TIME) -timeout=0 -v .

interop: ## with Redisson; needs Java 17, Maven and redis-server
	cd interop && go test -timeout 25m ./...

otel: ## metrics, spans and the dashboard
	cd otel && go test ./... && go run ./example

bench: ## beside other libraries, a moment of each; needs redis-server
	cd bench && go run . -short

examples: ## every example, one after the other
	@for e in $(EXAMPLES); do printf '\n== %s\n' $$e; go run ./examples/$$e || exit 1; done
	@printf '\n== postgres\n'; cd examples/postgres && go run .

lint: ## gofmt, go vet, staticcheck, golangci-lint; the last of these for the modules beside the root, too
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go run $(GOLANGCI) run ./...
	cd otel && go run $(GOLANGCI) run -c ../.golangci.yml ./...
	cd interop && go run $(GOLANGCI) run -c ../.golangci.yml ./...
	cd examples/postgres && go run $(GOLANGCI) run -c ../../.golangci.yml ./...

api: ## whether the exported API can still be used as it was
	.ci/api check

tidy: ## go.mod of all modules
	go mod tidy
	cd interop && go mod tidy
	cd otel && go mod tidy
	cd bench && go mod tidy
	cd examples/postgres && go mod tidy

gate: ## what a change has to pass; installs what it needs on Debian
	.ci/run
