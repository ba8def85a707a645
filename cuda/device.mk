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

ifeq ($(CUDA)-$(NVCC),1-)
$(error CUDA=1: nvcc is not here; install the CUDA toolkit, set NVCC=, or build with CUDA=0)
endif
ifeq ($(filter-out 0,$(CUDA))-$(VARIANT),$(if $(NVCC),$(CUDA),none)-release)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCHS ?= 80 89 90
CUDA_OBJ := $(CUDA_SRC:%=$(B)/%.o) $(patsubst %.c,$(B)/%.o,$(filter-out cuda/absent.c,$(wildcard cuda/*.c)))
$(filter-out %.cu.o,$(CUDA_OBJ)): ALL_CFLAGS += -isystem $(CUDA_HOME)/include
$(B)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "nvcc $<"; $(NVCC) -std=c++17 -O3 -lineinfo -Isrc -I. -D_GNU_SOURCE $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
		-MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/roundhouse: LIBS += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -Wl,--as-needed -lstdc++ -lrt -ldl
endif
