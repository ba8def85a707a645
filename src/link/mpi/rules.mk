# Links over MPI: a shared object beside the program, which loads it when a run asks for it. MPI=auto builds it where there is mpicc, 1 insists, 0
# leaves it out. Neither the program nor its tests need it.
MPI   ?= auto
MPICC ?= mpicc
HAS_MPI := $(if $(filter 0,$(MPI)),,$(shell command -v $(MPICC)))
ifeq ($(MPI)$(HAS_MPI),1)
$(error MPI=1, but there is no $(MPICC): install libopenmpi-dev, or name another by MPICC=)
endif
MPI_CALLS := $(if $(HAS_MPI),$(B)/roundhouse-mpi.so)

$(B)/roundhouse-mpi.so: src/link/mpi/calls.c src/link/mpi_calls.h
	@mkdir -p $(@D)
	@echo "mpicc $<"; $(MPICC) -std=c11 $(WARN) -Isrc -O2 -fPIC -shared -fvisibility=default -o $@ $<
