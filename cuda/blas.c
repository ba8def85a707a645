/* Products on cuBLASLt. The library is loaded when a device is opened, not when the program starts: it is half a gigabyte that runs without
 * a GPU do not need. The algorithm is the first that the library's heuristics name for BLAS_WORKSPACE_BYTES and that this GPU can run,
 * remembered for each kind of product; none is ever timed, so that a run repeated is a run repeated. */
#include "cuda/blas.h"

#include "cuda/blas_library.h"
#include "cuda/choices.h"

#include "core/alloc.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

enum { CANDIDATES = 8 };

static_assert(sizeof(cublasLtMatmulAlgo_t) == CHOICE_BYTES, "an algorithm fits its place");

struct blas {
	void *library; /* for as long as the process runs */
	cublasLtHandle_t handle;
#define FIELD(name) __typeof__(&name) name;
	BLAS_ENTRIES(FIELD)
#undef FIELD
	struct choices *choices;
};

/* A product in the library's words. */
struct call {
	cublasLtMatmulDescOpaque_t product;
	cublasLtMatrixLayoutOpaque_t a, b, c, d;
};

static int fail(const struct blas *blas, cublasStatus_t status, const char *what, const struct blas_product *p)
{
	return rh_fail(-EIO, "%s failed for a product of %lldx%lldx%lld: %s", what, (long long)p->m, (long long)p->n, (long long)p->k,
	               blas->cublasLtGetStatusString(status));
}

int blas_create(struct blas **out)
{
	struct blas *blas = rh_alloc(1, sizeof *blas);
	if (!blas || !(blas->choices = choices_create())) {
		blas_destroy(blas);
		return -ENOMEM;
	}
	blas->library = dlopen(BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!blas->library) {
		int rc = rh_fail(-ENOENT,
		                 "cannot load %s: %s; install cuBLAS %d (of CUDA, or the Python package " BLAS_PACKAGE
		                 ") or set LD_LIBRARY_PATH",
		                 BLAS_LIBRARY, dlerror(), CUBLAS_VER_MAJOR);
		blas_destroy(blas);
		return rc;
	}
	const char *missing = NULL;
	void *entry;
#define LOAD(name)                                                                                                                         \
	entry = dlsym(blas->library, #name);                                                                                               \
	memcpy(&blas->name, &entry, sizeof entry);                                                                                         \
	if (!entry)                                                                                                                        \
		missing = #name;
	BLAS_ENTRIES(LOAD)
#undef LOAD
	if (missing) {
		blas_destroy(blas);
		return rh_fail(-ENOENT, "%s has no %s; install cuBLAS %d.%d or later", BLAS_LIBRARY, missing, CUBLAS_VER_MAJOR,
		               CUBLAS_VER_MINOR);
	}
	cublasStatus_t status = blas->cublasLtCreate(&blas->handle);
	if (status != CUBLAS_STATUS_SUCCESS) {
		int rc = rh_fail(-EIO, "cuBLASLt does not start: %s", blas->cublasLtGetStatusString(status));
		blas->handle = NULL;
		blas_destroy(blas);
		return rc;
	}
	*out = blas;
	return 0;
}

void blas_destroy(struct blas *blas)
{
	if (!blas)
		return;
	if (blas->handle)
		blas->cublasLtDestroy(blas->handle);
	choices_destroy(blas->choices);
	rh_free(blas); /* the library stays: its own parts of the GPU's context would outlive it */
}

static cudaDataType_t type_of(enum rh_dtype dtype)
{
	switch (dtype) {
	case RH_F32:
		return CUDA_R_32F;
	case RH_E4M3:
		return CUDA_R_8F_E4M3;
	case RH_E5M2:
		return CUDA_R_8F_E5M2;
	default:
		return CUDA_R_16BF;
	}
}

/* Sets an attribute of the product, unless something failed before. */
static void set(const struct blas *blas, struct call *call, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes,
                cublasStatus_t *status)
{
	if (*status == CUBLAS_STATUS_SUCCESS)
		*status = blas->cublasLtMatmulDescSetAttribute(&call->product, attribute, value, bytes);
}

/* COMPUTE_32F: TF32 would be another type, which nobody asks for. */
static cublasStatus_t describe(const struct blas *blas, const struct blas_product *p, const struct choice_key *key, struct call *call)
{
	const cublasOperation_t trans[] = {p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N};
	const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
	const cudaDataType_t output = type_of(p->output);
	cublasStatus_t status = blas->cublasLtMatmulDescInit_internal(&call->product, sizeof call->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	set(blas, call, CUBLASLT_MATMUL_DESC_TRANSA, &trans[0], sizeof trans[0], &status);
	set(blas, call, CUBLASLT_MATMUL_DESC_TRANSB, &trans[1], sizeof trans[1], &status);
	if (p->scale_a) {
		set(blas, call, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->scale_a, sizeof p->scale_a, &status);
		set(blas, call, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->scale_b, sizeof p->scale_b, &status);
	}
	if (p->bias) {
		set(blas, call, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, &status);
		set(blas, call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias, &status);
	}
	const struct {
		cublasLtMatrixLayoutOpaque_t *layout;
		cudaDataType_t type;
		int64_t rows, cols, ld;
	} matrices[] = {{&call->a, type_of(p->type_a), p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, key->lda},
	                {&call->b, type_of(p->type_b), p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, key->ldb},
	                {&call->c, output, p->m, p->n, key->ldc},
	                {&call->d, output, p->m, p->n, key->ldd}};
	for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < sizeof matrices / sizeof *matrices; i++)
		status = blas->cublasLtMatrixLayoutInit_internal(matrices[i].layout, sizeof *matrices[i].layout, matrices[i].type,
		                                                 (uint64_t)matrices[i].rows, (uint64_t)matrices[i].cols, matrices[i].ld);
	return status;
}

/* Partial sums over pieces of k stay in fp32: reductions in the output's dtype would round a bf16 sum more than once. */
static cublasStatus_t choose(const struct blas *blas, const struct choice_key *key, struct call *call, cublasLtMatmulAlgo_t *out)
{
	static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
	        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	cublasLtMatmulPreferenceOpaque_t preference;
	const uint64_t workspace_bytes = BLAS_WORKSPACE_BYTES;
	const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	cublasStatus_t status = blas->cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = blas->cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
		                                                    sizeof workspace_bytes);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = blas->cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
		                                                    sizeof reductions);
	for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < 4; i++) {
		uint32_t bytes = (uint32_t)key->alignment[i];
		status = blas->cublasLtMatmulPreferenceSetAttribute(&preference, alignments[i], &bytes, sizeof bytes);
	}
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	cublasLtMatmulHeuristicResult_t result[CANDIDATES];
	int found = 0;
	status = blas->cublasLtMatmulAlgoGetHeuristic(blas->handle, &call->product, &call->a, &call->b, &call->c, &call->d, &preference,
	                                              CANDIDATES, result, &found);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	for (int i = 0; i < found; i++)
		if (result[i].state == CUBLAS_STATUS_SUCCESS) { /* the best of those that this GPU can run */
			*out = result[i].algo;
			return CUBLAS_STATUS_SUCCESS;
		}
	return found ? result[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
}

int blas_multiply(struct blas *blas, const struct blas_product *p, void *workspace, struct CUstream_st *stream)
{
	const struct choice_key key = choice_key_of(p);
	struct call call;
	cublasStatus_t status = describe(blas, p, &key, &call);
	if (status != CUBLAS_STATUS_SUCCESS)
		return fail(blas, status, "describing", p);
	int known;
	cublasLtMatmulAlgo_t *algorithm = choices_find(blas->choices, &key, &known);
	if (!known) {
		status = choose(blas, &key, &call, algorithm);
		if (status != CUBLAS_STATUS_SUCCESS) {
			choices_forget(blas->choices, &key);
			return fail(blas, status, "cuBLASLt's choice of an algorithm", p);
		}
	}
	const float beta = p->c.data ? 1 : 0;
	status = blas->cublasLtMatmul(blas->handle, &call.product, &p->alpha, p->a.data, &call.a, p->b.data, &call.b, &beta,
	                              p->c.data ? p->c.data : p->d, &call.c, p->d, &call.d, algorithm, workspace, BLAS_WORKSPACE_BYTES,
	                              stream);
	return status == CUBLAS_STATUS_SUCCESS ? 0 : fail(blas, status, "cuBLASLt", p);
}

int64_t blas_misses(const struct blas *blas)
{
	return choices_misses(blas->choices);
}

int64_t blas_evictions(const struct blas *blas)
{
	return choices_evicted(blas->choices);
}
