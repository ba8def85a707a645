/* cuBLASLt as it is opened at run time: its file's name, and its entry points by the names and types of the header. */
#ifndef RH_CUDA_BLAS_LIBRARY_H
#define RH_CUDA_BLAS_LIBRARY_H

#include <cublasLt.h>

#define BLAS_TEXT_(x) #x
#define BLAS_TEXT(x)  BLAS_TEXT_(x)
#define BLAS_LIBRARY  "libcublasLt.so." BLAS_TEXT(CUBLAS_VER_MAJOR)

#if CUBLAS_VER_MAJOR < 13
#define BLAS_PACKAGE "nvidia-cublas-cu" BLAS_TEXT(CUBLAS_VER_MAJOR)
#else
#define BLAS_PACKAGE "nvidia-cublas"
#endif

#define BLAS_ENTRIES(X)                                                                                                                    \
	X(cublasLtCreate)                                                                                                                  \
	X(cublasLtDestroy)                                                                                                                 \
	X(cublasLtMatmul)                                                                                                                  \
	X(cublasLtMatmulAlgoGetHeuristic)                                                                                                  \
	X(cublasLtMatmulDescInit_internal)                                                                                                 \
	X(cublasLtMatmulDescSetAttribute)                                                                                                  \
	X(cublasLtMatrixLayoutInit_internal)                                                                                               \
	X(cublasLtMatmulPreferenceInit_internal)                                                                                           \
	X(cublasLtMatmulPreferenceSetAttribute)                                                                                            \
	X(cublasLtGetStatusString)

#endif
