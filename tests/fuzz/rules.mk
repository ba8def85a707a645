# make fuzz [FUZZ=NAME...] [SECONDS=60]: libFuzzer over the targets tests/fuzz/test_NAME.c, under AddressSanitizer and UBSan. What finds new
# edges lies in build/fuzz/corpus/NAME afterwards; `make fuzz-merge` moves what tests/fuzz/corpus/NAME lacks there, small files only.
# The rooms that read files are compiled by clang; the rest comes from the release library.
FUZZ    ?= $(patsubst tests/fuzz/test_%.c,%,$(wildcard tests/fuzz/test_*.c))
SECONDS ?= 60
F       := build/fuzz
FUZZ_CFLAGS := -std=c11 -g -O1 -fno-omit-frame-pointer -Isrc -I. -Itests -D_GNU_SOURCE -DRH_FUZZER -pthread -fsanitize=address,undefined \
               -fno-sanitize-recover=undefined -fsanitize-coverage-ignorelist=tests/fuzz/untraced.txt -w
FUZZ_SRC := $(wildcard src/core/*.c src/config/*.c src/data/*.c src/data/*/*.c src/parquet/*.c src/token/*.c src/model/*.c src/ckpt/*.c src/observe/*.c src/train/*.c src/train/*/*.c src/link/*.c)
FUZZ_OBJ := $(FUZZ_SRC:%.c=$(F)/%.o)

$(F)/%.o: %.c
	@mkdir -p $(@D)
	@echo "clang $<"; clang $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<

$(F)/fuzz_%: tests/fuzz/test_%.c tests/fuzz/fuzz.h $(FUZZ_OBJ) build/release/libroundhouse.a
	@echo "clang $<"; clang $(FUZZ_CFLAGS) -fsanitize=fuzzer -o $@ $< $(FUZZ_OBJ) build/release/libroundhouse.a $(filter-out -ljemalloc,$(LIBS))

fuzz: $(FUZZ:%=$(F)/fuzz_%)
	@for t in $(FUZZ); do mkdir -p $(F)/corpus/$$t tests/fuzz/corpus/$$t; echo "fuzz $$t, $(SECONDS) s"; \
		$(F)/fuzz_$$t -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 -verbosity=1 \
		-artifact_prefix=$(F)/found-$$t- $(F)/corpus/$$t tests/fuzz/corpus/$$t >$(F)/$$t.log 2>&1 || { tail -n 40 $(F)/$$t.log; exit 1; }; \
		grep -E 'cov:' $(F)/$$t.log | tail -n 1; grep -E 'stat::number_of_executed_units' $(F)/$$t.log; done

fuzz-merge: $(FUZZ:%=$(F)/fuzz_%)
	@for t in $(FUZZ); do $(F)/fuzz_$$t -merge=1 -max_len=4096 tests/fuzz/corpus/$$t $(F)/corpus/$$t 2>&1 | tail -n 1; done

.SECONDARY: $(FUZZ_OBJ)
-include $(FUZZ_OBJ:.o=.d)
.PHONY: fuzz fuzz-merge
