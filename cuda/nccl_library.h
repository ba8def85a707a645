/* NCCL as it is opened at run time: its file's name, and its entry points. The types are the header's where it is there, so that a compiler
 * compares them; else, and on the emulation, what of them is used. */
#ifndef RH_CUDA_NCCL_LIBRARY_H
#define RH_CUDA_NCCL_LIBRARY_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#if !defined(RH_CUDA_EMULATED) && __has_include(<nccl.h>)
#include <nccl.h>
#else
typedef struct ncclComm *ncclComm_t;
typedef struct {
	char internal[128];
} ncclUniqueId;
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
/* Of NCCL 2.14: a later library takes its own defaults for the rest. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                                                            \
	{                                                                                                                                  \
		sizeof(ncclConfig_t), 0xcafebeef, 21400, 1                                                                                 \
	}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclSend(const void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
const char *ncclGetErrorString(ncclResult_t result);
#endif

#define NCCL_LIBRARY "libnccl.so.2"

#define NCCL_ENTRIES(X)                                                                                                                    \
	X(ncclGetUniqueId)                                                                                                                 \
	X(ncclCommInitRankConfig)                                                                                                          \
	X(ncclCommDestroy)                                                                                                                 \
	X(ncclCommAbort)                                                                                                                   \
	X(ncclCommGetAsyncError)                                                                                                           \
	X(ncclSend)                                                                                                                        \
	X(ncclRecv)                                                                                                                        \
	X(ncclGetErrorString)

#endif
