# The kernels of cuda/, built twice: under g++ on the emulation of tests/cudaemu, for the tests of every machine, and under nvcc where there is one.

PACKAGES += g++ xz-utils
CUDA_SRC := $(sort $(wildcard cuda/*.cu))
EMU_SRC  := $(sort $(wildcard tests/cudaemu/*.cpp tests/cudaemu/*.cu))
EMU_FLAGS = -std=c++17 -fno-strict-aliasing -fno-exceptions -fno-rtti -DRH_CUDA_EMULATED -Wall -Wextra -Wno-missing-field-initializers \
            $(if $(WERROR),-Werror) -Isrc -I. -Itests -Itests/cudaemu -O2 -g -fno-math-errno -MMD -MP -D_GNU_SOURCE
# So that the linker takes these entries from the emulation, not from absent.c.
EMU_WANTS := -Wl,-u,rh_cuda_kind -Wl,-u,rh_nccl_open
EMU_ASAN  = -O1 -fsanitize=address -fno-omit-frame-pointer

# $(1): folder of the objects, $(2): further flags
define emu_rules
$(B)/$(1)/%.cu.o: %.cu
	@mkdir -p $$(@D)
	@echo "c++ $$< ($(1))"; g++ -x c++ $$(EMU_FLAGS) $(2) -c -o $$@ $$<
$(B)/$(1)/%.cpp.o: %.cpp
	@mkdir -p $$(@D)
	@echo "c++ $$< ($(1))"; g++ $$(EMU_FLAGS) $(2) -c -o $$@ $$<
$(B)/libcuda$(1).a: $(CUDA_SRC:%=$(B)/$(1)/%.o) $(EMU_SRC:%=$(B)/$(1)/%.o)
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(eval $(call emu_rules,emu,$$(SAN_$(VARIANT))))
$(eval $(call emu_rules,emu-asan,$$(EMU_ASAN)))

$(B)/tests/cuda/%.o: tests/cuda/%.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) $(TEST_O) -Itests -Itests/device -Itests/cudaemu -c -o $@ $<
$(B)/tests/cuda/%: $(B)/tests/cuda/%.o $(B)/libcudaemu.a $(B)/libroundhouse.a
	@$(CC) $(SAN_$(VARIANT)) $(CFLAGS) -pthread $(EMU_WANTS) -o $@ $(filter %.o %.a,$^) $(LIBS) -lcmocka -lstdc++

# Over stubs of the runtime: of the emulation's objects only these two.
$(B)/tests/cuda/test_device_queue: $(B)/tests/cuda/test_device_queue.o $(B)/emu/cuda/device_queue.o $(B)/emu/cuda/device_event.o $(B)/libroundhouse.a
	@$(CC) $(SAN_$(VARIANT)) $(CFLAGS) -pthread -o $@ $(filter %.o %.a,$^) $(LIBS) -lcmocka

# What stands in for NCCL's library where the emulation stands in for CUDA.
$(B)/nccl-stand-in.so: tests/cuda/nccl_stand_in.c cuda/nccl_library.h
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) -std=c11 $(WARN) -Isrc -I. -Itests/cudaemu -DRH_CUDA_EMULATED -D_GNU_SOURCE -O2 -g -fPIC -shared -o $@ $<
$(B)/tests/cuda/test_nccl $(B)/tests/cuda/test_nccl-asan $(B)/tests/cli/test_box_nccl: | $(B)/nccl-stand-in.so

# jemalloc and AddressSanitizer both want malloc: without the former.
$(B)/tests/cuda/%-asan.o: tests/cuda/%.c
	@mkdir -p $(@D)
	@echo "cc $< (asan)"; $(CC) $(ALL_CFLAGS) $(EMU_ASAN) -Itests -Itests/device -Itests/cudaemu -c -o $@ $<
$(B)/tests/cuda/%-asan: $(B)/tests/cuda/%-asan.o $(B)/libcudaemu-asan.a $(B)/libroundhouse.a
	@$(CC) $(CFLAGS) $(EMU_ASAN) -pthread $(EMU_WANTS) -o $@ $(filter %.o %.a,$^) $(filter-out -ljemalloc,$(LIBS)) -lcmocka -lstdc++

# A release runs the tests of kernels under AddressSanitizer alone, those of whole steps without it (`make asan` has these too).
CUDA_TESTS := $(filter-out %/test_resources.c %/test_staging.c %/test_training.c %/test_device_queue.c,$(filter tests/cuda/%,$(TESTS)))
ifeq ($(VARIANT),tsan) # does not know of fibers
TESTBIN := $(filter %/test_device_queue,$(TESTBIN)) $(filter-out $(B)/tests/cuda/%,$(TESTBIN))
endif
ifeq ($(VARIANT),release)
TESTBIN := $(CUDA_TESTS:%.c=$(B)/%-asan) $(filter-out $(CUDA_TESTS:%.c=$(B)/%),$(TESTBIN)) # the longest first
endif
