/* What tests ask of the program that users never do, all in one place: names in the environment, read where they are used. Beside them
 * rh_alloc_fail_nth (core/alloc.h) and rh_drive_fail_nth (offload/drive.h) make the Nth call fail. */
#ifndef RH_CORE_HOOKS_H
#define RH_CORE_HOOKS_H

#define RH_HOOK_CPU_ISA        "RH_CPU_ISA"        /* no better instruction set than this, by rh_cpu_isa_name */
#define RH_HOOK_FATES          "RH_FATES"          /* a seed: activations are kept, saved or recomputed at random, row by row */
#define RH_HOOK_MACHINE_ROOT   "RH_MACHINE_ROOT"   /* where /proc and /sys are found */
#define RH_HOOK_MPI            "RH_MPI"            /* the file that is roundhouse-mpi.so */
#define RH_HOOK_NCCL           "RH_NCCL"           /* the file that is NCCL's library */
#define RH_HOOK_NVME           "RH_NVME"           /* threads: drives are read and written by threads, not io_uring */
#define RH_HOOK_PACE           "RH_PACE"           /* a hardware profile: CPU devices' commands last as long as its device's */
#define RH_HOOK_PIECE_BYTES    "RH_PIECE_BYTES"    /* another size of the pieces in which weights and gradients travel */
#define RH_HOOK_PLAN           "RH_PLAN"           /* train follows the plan of this number among those that were compared, from 0 */
#define RH_HOOK_ROOM           "RH_ROOM"           /* bytes: CPU devices are planned as if they had so much memory of their own */
#define RH_HOOK_SHARED_BYTES   "RH_SHARED_BYTES"   /* the most shared memory that an SM is taken to have; 102400: as an RTX card */
#define RH_HOOK_SPOIL_STEPS    "RH_SPOIL_STEPS"    /* "3-5": in these steps the gradient of the first trained layer holds a NaN */
#define RH_HOOK_TABLE_ROWS     "RH_TABLE_ROWS"     /* 1: the embedding travels by rows wherever it can; 0: nowhere */
#define RH_HOOK_SPILL_ELEMENTS "RH_SPILL_ELEMENTS" /* another size of pieces and pages on NVMe, and fewer frames */

#endif
