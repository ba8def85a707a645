# Roundhouse. Two commands for a person: `make demo`, `make test`. Both install missing packages first (saying what), then build, then run.
#
# Everything is built under build/<variant>. make VARIANT=asan|ubsan|tsan builds with that sanitizer; WERROR=1 makes warnings errors.

VARIANT ?= release
B       ?= build/$(VARIANT)
PYTHON  ?= python3
CC      ?= gcc

PACKAGES := gcc make libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev liburing-dev libjemalloc-dev libhwloc-dev zlib1g-dev libzstd-dev libsnappy-dev libpng-dev libjpeg62-turbo-dev libssl-dev libedit-dev libcmocka-dev
DEMO_PACKAGES  := python3 python3-pip
BENCH_PACKAGES := libdnnl-dev fio iperf3 # the peers of bench/gemm-cpu, bench/nvme and bench/links

WARN   := -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes -Wstrict-prototypes -Wvla -Wno-format-truncation $(if $(WERROR),-Werror)
CFLAGS ?= -O3 -g
ALL_CFLAGS = -std=c11 $(WARN) -Isrc -I. $(CFLAGS) -fno-math-errno -ffp-contract=fast -pthread -MMD -MP $(SAN_$(VARIANT)) -D_GNU_SOURCE
SAN_asan  := -O1 -fsanitize=address,leak -fno-omit-frame-pointer
SAN_ubsan := -O1 -fsanitize=undefined -fno-sanitize-recover=all
SAN_tsan  := -O1 -fsanitize=thread
# Test programs compile in less than half of the time that -O3 takes.
TEST_O    := $(if $(filter release,$(VARIANT)),-O2)
JEMALLOC  := $(if $(filter release,$(VARIANT)),-ljemalloc)
LIBS = -lyaml -ljansson -lpcre2-8 -lutf8proc -lxxhash -luring -lhwloc -lz -lzstd -lsnappy -lpng -ljpeg -lssl -lcrypto -ledit $(JEMALLOC) -lm -lpthread

SRC  := $(sort $(filter-out src/link/mpi/% src/ckpt/simd/%,$(wildcard src/*/*.c src/*/*/*.c offload/*.c partition/*.c)) cuda/absent.c)
LIB  := $(filter-out src/cli/main.c,$(SRC))
OBJ  := $(LIB:%.c=$(B)/%.o) $(B)/hardware_profiles.o $(B)/model_shapes.o
TESTS := $(sort $(wildcard tests/*/test_*.c))
TESTBIN := $(TESTS:%.c=$(B)/%)

# Files compiled once for each instruction set and chosen at run time: src/device/cpu/simd/X.c -> X.avx512.o X.avx2.o X.base.o; those in
# simd/amx and simd/bf16 only for what they are called after.
SIMD := $(wildcard src/device/cpu/simd/*.c offload/simd/*.c src/ckpt/simd/*.c)
SIMD_OBJ := $(foreach isa,avx512 avx2 base,$(SIMD:%.c=$(B)/%.$(isa).o)) $(foreach isa,amx bf16,$(patsubst %.c,$(B)/%.$(isa).o,$(wildcard src/device/cpu/simd/$(isa)/*.c)))
ISA_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
ISA_amx    := $(ISA_avx512) -mamx-tile -mamx-bf16
ISA_bf16   := $(ISA_avx512) -mavx512bf16
ISA_avx2   := -march=x86-64-v3
ISA_base   := -march=x86-64

.DEFAULT_GOAL := all
.SECONDARY: # objects of tests stay
include cuda/rules.mk
include cuda/device.mk
include src/link/mpi/rules.mk
include tests/fuzz/rules.mk
include tests/crash/rules.mk
include tests/mutants/rules.mk

all: $(B)/roundhouse $(MPI_CALLS)

# One line where a package is missing, before a compiler says it file by file.
HEADERS_USED := yaml.h jansson.h utf8proc.h xxhash.h liburing.h hwloc.h openssl/ssl.h zlib.h zstd.h snappy-c.h png.h jpeglib.h histedit.h
$(B)/packages-there: Makefile
	@mkdir -p $(@D)
	@{ $(foreach h,$(HEADERS_USED),echo '#include <$(h)>';) printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\nint main(void) { return 0; }\n'; } >$@.c
	@$(CC) -D_GNU_SOURCE $(SAN_$(VARIANT)) -o $@ $@.c $(LIBS) 2>$@.log || { echo "make: $$(sed -n 's/.*fatal error: \([^:]*\):.*/\1/p; s/.*cannot find -l/lib/p; s/.*: \(.*\): not found/\1/p' $@.log | \
		head -n 1 | cut -d: -f1) is missing: run make deps (it installs, with apt: $(filter-out libcmocka-dev g++ xz-utils,$(PACKAGES)))" >&2; exit 1; }
$(OBJ) $(SIMD_OBJ) $(B)/src/cli/main.o: | $(B)/packages-there

# The objects of CUDA before the library, whose own entries (cuda/absent.c) are then not taken.
$(B)/roundhouse: $(B)/src/cli/main.o $(CUDA_OBJ) $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) $(SAN_$(VARIANT)) -o $@ $^ $(LIBS)
	$(if $(CUDA_OBJ),,@echo "built without CUDA ($(if $(NVCC),CUDA=$(CUDA),nvcc not found; CUDA=1 insists))")

$(B)/libroundhouse.a: $(OBJ) $(SIMD_OBJ)
	@rm -f $@
	@ar rcs $@ $^

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) -c -o $@ $<

# The hardware profiles, which a program that is run far from their files has, too. The folder is newer once a file was added or removed.
PROFILES := $(sort $(wildcard examples/hardware/*.yaml))
$(B)/hardware_profiles.c: examples/hardware $(PROFILES)
	@mkdir -p $(@D)
	@set -e; { echo '#include "config/config_internal.h"'; echo 'const struct config_profile config_profiles[] = {'; \
		for f in $(PROFILES); do echo "{\"$$(basename $$f .yaml)\","; sed 's/[\\"?]/\\&/g; s/.*/"&\\n"/' $$f; echo '},'; done; echo '{0}};'; } >$@
# Likewise the published config.json of some models, for which one may plan before they are there.
SHAPES := $(sort $(wildcard examples/models/*/config.json))
$(B)/model_shapes.c: examples/models $(SHAPES)
	@mkdir -p $(@D)
	@set -e; { echo '#include "config/config_internal.h"'; echo 'const struct config_profile config_models[] = {'; \
		for f in $(SHAPES); do echo "{\"$$(basename $$(dirname $$f))\","; sed 's/[\\"?]/\\&/g; s/.*/"&\\n"/' $$f; echo '},'; done; echo '{0}};'; } >$@
$(B)/hardware_profiles.o $(B)/model_shapes.o: %.o: %.c
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) -c -o $@ $<

# The templates that chat_texts.c takes in whole, which the compiler does not name as what it depends on.
$(B)/src/data/chat_texts.o: $(wildcard src/data/templates/*.jinja)

define simd_rule
$(B)/%.$(1).o: %.c
	@mkdir -p $$(@D)
	@echo "cc $$< ($(1))"; $$(CC) $$(ALL_CFLAGS) $$(ISA_$(1)) -DRH_ISA=$(1) -c -o $$@ $$<
endef
$(foreach isa,amx bf16 avx512 avx2 base,$(eval $(call simd_rule,$(isa))))

# Compiled and linked apart: a change of the library links tests anew and compiles none.
$(B)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) $(TEST_O) -Itests -I$(<D) -c -o $@ $<
$(B)/tests/%: $(B)/tests/%.o $(B)/libroundhouse.a
	@$(CC) $(SAN_$(VARIANT)) $(CFLAGS) -pthread -o $@ $(filter %.o %.a,$^) $(LIBS) -lcmocka

tests-built: $(TESTBIN) $(B)/roundhouse $(MPI_CALLS)

test: deps
	@$(MAKE) --no-print-directory -j$$(nproc) tests-built
	@$(MAKE) --no-print-directory -j$$(nproc) cuda
	@tests/run.sh $(B) $(TESTBIN)

# The longer checks: exhaustive sweeps, and every demo-sized product.
test-long: deps
	@$(MAKE) --no-print-directory -j$$(nproc) tests-built
	@RH_LONG=1 tests/run.sh $(B) $(TESTBIN)

asan ubsan tsan:
	@$(MAKE) --no-print-directory test VARIANT=$@ CFLAGS=-g

# Model and data are fetched once into build/demo.
demo demo-full: deps
	@tests/deps.sh $(DEMO_PACKAGES)
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@python3 examples/fetch-demo.py
	@examples/demo.sh $(B)/roundhouse $(if $(filter demo-full,$@),full)

# Remakes the references with PyTorch, transformers and PEFT in build/venv, and compares them with the committed files.
reference: all
	@PYTHON=$(PYTHON) tests/reference/make.sh

LIBS_gemm-cpu := -ldnnl -lgomp
BENCHES := $(patsubst bench/%.c,%,$(wildcard bench/*.c)) $(filter-out gpu-check,$(patsubst bench/%.sh,%,$(wildcard bench/*.sh)))
bench: $(BENCHES:%=bench-%)
$(B)/bench/%: bench/%.c $(B)/libroundhouse.a
	@mkdir -p $(@D)
	@tests/deps.sh $(BENCH_PACKAGES)
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) -Ibench -o $@ $(filter %.c %.o,$^) $(filter %.a,$^) $(LIBS) $(LIBS_$*)
$(patsubst bench/%.c,bench-%,$(wildcard bench/*.c)): bench-%: $(B)/bench/%
	@$<
$(patsubst bench/%.sh,bench-%,$(wildcard bench/*.sh)): bench-%: bench/%.sh all
	@$<

# Each header alone, as C11 (codes_avx512.h is a part of codes.c, pairs.h wants AVX-512); cuda/'s, and those that CUDA files may include, as C++17 on the emulation.
HEADERS_C := $(filter-out offload/simd/codes_avx512.h src/device/cpu/simd/pairs.h,$(wildcard src/*/*.h src/*/*/*.h src/*/*/*/*.h offload/*.h offload/*/*.h partition/*.h)) \
             $(addprefix cuda/,blas.h blas_library.h choices.h device.h device_internal.h kernels.h)
HEADERS_CUDA := $(filter-out cuda/device_internal.h,$(wildcard src/device/*.h src/core/*.h cuda/*.h cuda/*.cuh))
HEADER_FLAGS := -Isrc -I. -Itests -Itests/cudaemu -Wall -Wextra -Wno-missing-field-initializers -Wno-unused-function -Werror -DRH_CUDA_EMULATED -DRH_ISA=base -D_GNU_SOURCE -fsyntax-only
headers:
	@for h in $(HEADERS_C); do $(CC) -std=c11 $(HEADER_FLAGS) -x c $$h || exit 1; done
	@for h in $(HEADERS_CUDA); do g++ -std=c++17 $(HEADER_FLAGS) -x c++ $$h || exit 1; done
	@echo "$(words $(sort $(HEADERS_C) $(HEADERS_CUDA))) headers stand alone"

# isa.c asks for processor features by names that only later clangs know.
tidy:
	clang-tidy --quiet $(filter-out src/device/cpu/isa.c,$(SRC)) -- -std=c11 -D_GNU_SOURCE -Isrc -I. -DRH_ISA=base

PREFIX ?= /usr/local
# README, and what it and its pages link to and name.
PAGES := README.md src/README.md $(wildcard examples/*.yaml examples/*.png examples/*/README.md examples/models/*.yaml examples/models/*/*)
SHARE := $(DESTDIR)$(PREFIX)/share
install: all
	install -D $(B)/roundhouse $(DESTDIR)$(PREFIX)/bin/roundhouse
	install -D -m 644 -t $(SHARE)/roundhouse/hardware examples/hardware/*.yaml
	$(if $(MPI_CALLS),install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/roundhouse $(MPI_CALLS))
	$(foreach file,$(PAGES),install -D -m 644 $(file) $(SHARE)/doc/roundhouse/$(file) &&) true
	install -D -m 644 src/packaging/completion.bash $(SHARE)/bash-completion/completions/roundhouse
	src/packaging/manual.sh $(B)/roundhouse >$(B)/roundhouse.1
	install -D -m 644 -t $(SHARE)/man/man1 $(B)/roundhouse.1

uninstall:
	rm -rf $(SHARE)/roundhouse $(SHARE)/doc/roundhouse $(DESTDIR)$(PREFIX)/lib/roundhouse
	rm -f $(DESTDIR)$(PREFIX)/bin/roundhouse $(SHARE)/bash-completion/completions/roundhouse $(SHARE)/man/man1/roundhouse.1

# A package of what `make install` installs; apt install ./build/roundhouse_VERSION_ARCHITECTURE.deb brings the libraries with it.
deb: all
	@tests/deps.sh dpkg-dev
	@rm -rf $(B)/deb
	@$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/$(B)/deb PREFIX=/usr >/dev/null
	@src/packaging/deb.sh $(B)/deb build

deps:
	@tests/deps.sh $(PACKAGES)
	$(if $(and $(CUDA_OBJ),$(CUDA12_MISSING)),@echo "not installed: $(CUDA12_PACKAGES) (apt): with them make gpu-bundle also packs programs for drivers 525 to 579")

fmt:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

clean:
	rm -rf build

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.PHONY: all test test-long tests-built asan ubsan tsan demo demo-full reference bench headers tidy install uninstall deb deps fmt clean
