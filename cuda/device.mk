# The CUDA device around the kernels of rules.mk: on the emulation, for tests; and in the program, where nvcc is. CUDA=auto (nvcc if it is there), 1 (it
# must be) or 0. cuBLASLt is loaded when a GPU is used and the runtime is linked in: the program starts without either.

CUDA ?= auto
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))

EMU_C := $(filter-out cuda/absent.c cuda/blas.c,$(wildcard cuda/*.c)) $(wildcard tests/cudaemu/*.c)
define emu_c_rules
$(B)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	@echo "cc $$< ($(1))"; $$(CC) $$(ALL_CFLAGS) -DRH_CUDA_EMULATED -Itests/cudaemu $(2) -c -o $$@ $$<
$(B)/libcuda$(1).a: $(EMU_C:%.c=$(B)/$(1)/%.o)
endef
$(eval $(call emu_c_rules,emu,))
$(eval $(call emu_c_rules,emu-asan,$$(EMU_ASAN)))

# The program as it is, on emulated GPUs: `device: emu:N`. For tests; never installed.
$(B)/roundhouse-emu: $(B)/src/cli/main.o $(B)/libcudaemu.a $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) $(SAN_$(VARIANT)) $(EMU_WANTS) -o $@ $^ $(LIBS) -lstdc++
emu: $(B)/roundhouse-emu
ifneq ($(VARIANT),tsan) # does not know of fibers
tests-built: $(B)/roundhouse-emu
endif

ifeq ($(CUDA)-$(NVCC),1-)
$(error CUDA=1: nvcc is not here; install the CUDA toolkit, set NVCC=, or build with CUDA=0)
endif
ifeq ($(filter-out 0,$(CUDA))-$(VARIANT),$(if $(NVCC),$(CUDA),none)-release)
CUDA_HOME  := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCHS ?= 80 89 90 $(if $(findstring compute_120,$(shell $(NVCC) --list-gpu-arch)),120)
CUDA_OBJ   := $(CUDA_SRC:%=$(B)/%.o) $(patsubst %.c,$(B)/%.o,$(filter-out cuda/absent.c,$(wildcard cuda/*.c)))
CUDA_LIBS   = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64
comma      := ,
empty      :=
space      := $(empty) $(empty)
$(filter-out %.cu.o,$(CUDA_OBJ)): ALL_CFLAGS += -isystem $(CUDA_HOME)/include

# One line where the toolkit is too old, as some distributions' is, or not whole, before compilers say it file by file.
$(B)/cuda/toolkit-there: cuda/device.mk
	@mkdir -p $(@D)
	@printf '#include <cuda_runtime_api.h>\n#include <cublasLt.h>\n#if CUDART_VERSION < 12000\n#error\n#endif\n' | \
		$(CC) -isystem $(CUDA_HOME)/include -fsyntax-only -x c - 2>$@.log || { echo "make: the CUDA toolkit of $(NVCC) is older than 12 or lacks cuBLAS's \
	headers: install one that has both (NVCC= names its nvcc), or build with CUDA=0" >&2; exit 1; }
	@touch $@
$(CUDA_OBJ): | $(B)/cuda/toolkit-there

# One front end for all architectures: nothing here asks which one it is, and of four front ends (half of the time of a build) the machine code of
# three is the same, by registers and spills, the fourth's (sm_120) now better, now worse. Its PTX goes along, which makes later GPUs run.
CUDA_CODE = arch=compute_$(firstword $(CUDA_ARCHS))$(comma)code=[$(subst $(space),$(comma),$(strip $(CUDA_ARCHS:%=sm_%) compute_$(firstword $(CUDA_ARCHS))))]

# What ptxas says of registers and shared memory stays beside each object: tests/cuda/test_resources.c judges it, and writes the table
# $(B)/cuda/kernels.txt. After the tests, `make kernel-table` makes bench/cuda-kernels.txt of it, with what a model expects of each kernel.
kernel-table:
	@{ cat $(B)/cuda/kernels.txt; echo; python3 bench/gpu/model.py $(B)/cuda/kernels.txt; } >bench/cuda-kernels.txt
$(B)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "nvcc $<"; $(NVCC) -std=c++17 -O3 -lineinfo -Isrc -I. -D_GNU_SOURCE -Xcompiler -Wall,-Wextra -Xptxas -v \
		-gencode '$(CUDA_CODE)' \
		-MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$@.log 2>&1 || { cat $@.log; rm -f $@; exit 1; }
	@c++filt <$@.log >$(@:.cu.o=.ptxas); grep -i 'warning' $@.log || true
$(B)/roundhouse: LIBS += $(CUDA_LIBS) -lcudart_static -Wl,--as-needed -lstdc++ -lrt -ldl

# A link in which every name must resolve: the runtime as a shared library, cuBLASLt and NCCL with all entries that blas_library.h and
# nccl_library.h name.
NCCL         := $(wildcard $(addsuffix /nccl.h,$(CUDA_HOME)/include /usr/include /usr/local/include))
CUDA_ENTRIES := $(shell sed -n 's/^\tX(\(cublas[A-Za-z_]*\)).*/\1/p' cuda/blas_library.h) $(if $(NCCL),$(shell sed -n 's/^\tX(\(nccl[A-Za-z]*\)).*/\1/p' cuda/nccl_library.h))
$(B)/cuda/linked: $(B)/src/cli/main.o $(CUDA_OBJ) $(B)/libroundhouse.a
	@for name in $(CUDA_ENTRIES); do echo "extern char $$name; void *const use_$$name = &$$name;"; done >$@.c
	@echo "ld $@"; $(CC) -o $@ $@.c $^ $(LIBS) $(CUDA_LIBS) -lcudart -lcublasLt $(if $(NCCL),-lnccl) -lstdc++

cuda: $(B)/cuda/linked
	@! grep -i -H 'warning' $(CUDA_SRC:%=$(B)/%.o.log) || { echo "cuda: nvcc warned (above)"; exit 1; }
	@echo "cuda: $(words $(CUDA_SRC)) files compiled for $(CUDA_ARCHS:%=sm_%), and as PTX for later ones, without warnings; linked with cudart, cuBLASLt$(if $(NCCL), and NCCL) ($(words $(CUDA_ENTRIES)) entries)"
	$(if $(NCCL),,@echo "skipped: nothing is linked with NCCL: nccl.h is not installed")
	@$(MAKE) --no-print-directory gpu-bundle CLANG12=
else
cuda:
	@$(if $(filter release,$(VARIANT)),echo "skipped: cuda/ is not compiled by nvcc: $(if $(NVCC),CUDA=0,it is not on PATH$(comma) nor is /usr/local/cuda/bin/nvcc); its kernels run emulated",:)
endif

# gpu-tools: the tests of kernels and products as they run on a device, and benchmarks (bench/gpu); for bench/gpu-check.sh. gpu-tools-emu is the same on
# emulated GPUs. A test program's main becomes NAME_main.
GPU_TESTS    := $(notdir $(basename $(filter-out %/test_device.c %/test_staging.c %/test_training.c %/test_cudaemu.c %/test_resources.c %/test_choices.c %/test_launches.c %/test_nccl.c,$(CUDA_TESTS))))
GPU_BENCH    := $(wildcard bench/gpu/*.c)
GPU_FLAGS    := -DRH_ON_GPU -Itests -Itests/device -Itests/cudaemu
GPU_LINK     := -Wl,--wrap=_Z18attention_one_passPK14attention_argsP11CUstream_st -Wl,--wrap=rh_devices_open -Wl,--wrap=rh_executor_finish -Wl,--wrap=rh_output_save
$(B)/gpu/tests/%.o: tests/cuda/%.c
	@mkdir -p $(@D)
	@echo "cc $< (gpu)"; $(CC) $(ALL_CFLAGS) $(TEST_O) $(GPU_FLAGS) -Dmain=$*_main -Wno-missing-prototypes -c -o $@ $<
define gpu_rules # $(1): folder of the objects, $(2): headers of the runtime
$(B)/$(1)/bench/%.o: bench/gpu/%.c
	@mkdir -p $$(@D)
	@echo "cc $$< ($(1))"; $$(CC) $$(ALL_CFLAGS) '-DGPU_TESTS(X)=$$(foreach name,$$(GPU_TESTS),X($$(name)))' $(2) -c -o $$@ $$<
endef
$(eval $(call gpu_rules,gpu,-isystem $(CUDA_HOME)/include))
$(eval $(call gpu_rules,gpu-emu,-DRH_CUDA_EMULATED -Itests/cudaemu))
# $(1): folder of the bench's objects, $(2): of the .cu one
gpu_objects = $(GPU_TESTS:%=$(B)/gpu/tests/%.o) $(GPU_BENCH:bench/gpu/%.c=$(B)/$(1)/bench/%.o) $(B)/$(2)bench/gpu/unordered.cu.o
$(B)/gpu-tools-emu: $(call gpu_objects,gpu-emu,emu/) $(B)/libcudaemu.a $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) $(SAN_$(VARIANT)) $(GPU_LINK) $(EMU_WANTS) -o $@ $^ $(LIBS) -lcmocka -lstdc++
$(B)/gpu-tools: $(call gpu_objects,gpu,) $(B)/gpu/no_emulation.o $(CUDA_OBJ) $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) $(GPU_LINK) -o $@ $^ $(LIBS) $(CUDA_LIBS) -lcmocka -lcudart_static -Wl,--as-needed -lstdc++ -lrt -ldl
$(B)/gpu/no_emulation.o: tests/cuda/no_emulation.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(ALL_CFLAGS) $(GPU_FLAGS) -c -o $@ $<

# The same two programs for drivers that know CUDA 12 alone (525 to 579), by clang from a toolkit that bench/gpu/cuda12.sh puts together. Machine code for
# sm_80 runs on 8.6 as well, that for sm_89 and 90 on its own; PTX for what is newer, such as an RTX 50, whose drivers (from 570 on) know this PTX.
CUDA12      := build/cuda12
CUDA12_SRC  := $(filter-out cuda/absent.c,$(wildcard cuda/*.c)) $(CUDA_SRC)
CUDA12_OBJ  := $(CUDA12_SRC:%=$(B)/cuda12/%.o)
CUDA12_LIBS := -L$(CUDA12)/lib64 -lcudart -Wl,--as-needed -lstdc++ -lrt -ldl
$(CUDA12)/bin/ptxas: bench/gpu/cuda12.sh
	@bench/gpu/cuda12.sh $(realpath $(CUDA_HOME)/bin/fatbinary)
$(B)/cuda12/%.cu.o: %.cu $(CUDA12)/bin/ptxas
	@mkdir -p $(@D)
	@echo "clang++ $< (cuda 12)"; clang++-19 -x cuda --cuda-path=$(CUDA12) $(addprefix --cuda-gpu-arch=sm_,80 89 90) --no-cuda-include-ptx=all --cuda-include-ptx=sm_90 -std=c++17 -O3 \
		-isystem $(CUDA12)/include -Isrc -I. -D_GNU_SOURCE -Wall -Wextra -Wno-unknown-cuda-version -Wno-missing-field-initializers -Wno-unused-function -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/cuda12/%.c.o: %.c $(CUDA12)/bin/ptxas
	@mkdir -p $(@D)
	@echo "cc $< (cuda 12)"; $(CC) $(ALL_CFLAGS) -isystem $(CUDA12)/include -c -o $@ $<
$(eval $(call gpu_rules,gpu12,-isystem $(CUDA12)/include))
$(GPU_BENCH:bench/gpu/%.c=$(B)/gpu12/bench/%.o): $(CUDA12)/bin/ptxas
$(B)/roundhouse-cuda12: $(B)/src/cli/main.o $(CUDA12_OBJ) $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) -o $@ $^ $(LIBS) $(CUDA12_LIBS)
$(B)/gpu-tools-cuda12: $(call gpu_objects,gpu12,cuda12/) $(B)/gpu/no_emulation.o $(CUDA12_OBJ) $(B)/libroundhouse.a
	@echo "ld $@"; $(CC) $(GPU_LINK) -o $@ $^ $(LIBS) $(CUDA12_LIBS) -lcmocka

# The programs with all that a bare machine with a GPU lacks.
# Both kinds where clang-19 is; `make cuda`, a part of `make test`, packs that of nvcc alone.
CUDA12_PACKAGES := clang-19 python3-pip
CLANG12         ?= $(shell command -v clang++-19)
CUDA12_MISSING  := $(if $(CLANG12),,clang-19)
GPU_PROGRAMS    := $(foreach name,roundhouse roundhouse-emu gpu-tools gpu-tools-emu $(if $(CLANG12),roundhouse-cuda12 gpu-tools-cuda12),$(B)/$(name))
gpu-bundle: $(GPU_PROGRAMS)
	$(if $(CLANG12),,@echo "skipped: programs for drivers before 580 are not packed: make gpu-bundle does so where clang-19 is installed (apt install $(CUDA12_PACKAGES))")
	$(if $(CUDA_OBJ),,$(error gpu-bundle: nvcc is not here, and the programs would know no GPU; install the CUDA toolkit or set NVCC=))
	@bench/gpu/bundle.sh $(B) "$(strip $(CUDA_ARCHS:%=sm_%))" $(notdir $(GPU_PROGRAMS))
ifeq ($(VARIANT),release)
tests-built: $(B)/gpu-tools-emu
endif
.PHONY: cuda emu gpu-bundle kernel-table
