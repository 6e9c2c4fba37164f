# make demo: read a 32K-token document and answer questions about it, dense and sparse side by side.
# make test: everything that is tested, sanitizers and fuzzers included. make build: build/release/bin/fovea.
.PHONY: demo demo-offload test build deps check clean

JOBS ?= $(shell nproc)

build: deps
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target fovea

demo: build
	tools/demo.sh

# A log of 120K tokens with an eighth of its K and V in memory, killed and started again.
demo-offload: build
	tools/demo_offload.py

test: deps
	tools/test.sh $(JOBS)

# The quick part of `test`: the release build's tests alone.
check: deps
	cmake --preset release
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS)

deps:
	tools/deps.sh

clean:
	rm -rf build demo
