/* Products on cuBLASLt. The library is loaded when a device is opened, not when the program starts: it is half a gigabyte that runs without
 * a GPU do not need. The algorithm is the first that the library's heuristics name for BLAS_WORKSPACE_BYTES and that this GPU can run,
 * remembered for each kind of product; none is ever timed, so that a run repeated is a run repeated. */
#include "cuda/blas.h"

#include "cuda/blas_library.h"

#include "core/alloc.h"

#include <dlfcn.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* What the choice of an algorithm may depend on; compared as bytes. */
struct key {
	int64_t m, n, k, lda, ldb, ldc, ldd;
	int32_t trans_a, trans_b, type_a, type_b, output, adds, in_place, has_bias;
	int32_t alignment[5]; /* of a, b, c, d and the bias, in bytes */
};

enum { CHOICES = 4096, CANDIDATES = 8, BEST_ALIGNMENT = 256 };

struct choice {
	int known;
	struct key key;
	cublasLtMatmulAlgo_t algorithm;
};

struct blas {
	void *library; /* for as long as the process runs */
	cublasLtHandle_t handle;
#define FIELD(name) __typeof__(&name) name;
	BLAS_ENTRIES(FIELD)
#undef FIELD
	struct choice choice[CHOICES]; /* by the key's hash; a second product with the same one takes its place */
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
	if (!blas)
		return -ENOMEM;
	blas->library = dlopen(BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!blas->library) {
		int rc = rh_fail(-ENOENT, "cannot load %s: %s; install CUDA's cuBLAS %d or set LD_LIBRARY_PATH", BLAS_LIBRARY, dlerror(),
		                 CUBLAS_VER_MAJOR);
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

static int32_t alignment_of(const void *data)
{
	uintptr_t low = (uintptr_t)data & -(uintptr_t)data;
	return !low || low > BEST_ALIGNMENT ? BEST_ALIGNMENT : (int32_t)low;
}

static struct key key_of(const struct blas_product *p)
{
	struct key key;
	memset(&key, 0, sizeof key);
	const void *c = p->c.data ? p->c.data : p->d;
	key.m = p->m, key.n = p->n, key.k = p->k;
	key.lda = p->a.ld, key.ldb = p->b.ld, key.ldc = p->c.data ? p->c.ld : p->ldd, key.ldd = p->ldd;
	key.trans_a = p->trans_a, key.trans_b = p->trans_b, key.output = (int32_t)p->output;
	key.type_a = (int32_t)p->type_a, key.type_b = (int32_t)p->type_b;
	key.adds = p->c.data != NULL, key.in_place = c == p->d, key.has_bias = p->bias != NULL;
	key.alignment[0] = alignment_of(p->a.data), key.alignment[1] = alignment_of(p->b.data);
	key.alignment[2] = alignment_of(c), key.alignment[3] = alignment_of(p->d), key.alignment[4] = alignment_of(p->bias);
	return key;
}

/* Sets an attribute of the product, unless something failed before. */
static void set(const struct blas *blas, struct call *call, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes,
                cublasStatus_t *status)
{
	if (*status == CUBLAS_STATUS_SUCCESS)
		*status = blas->cublasLtMatmulDescSetAttribute(&call->product, attribute, value, bytes);
}

/* COMPUTE_32F: TF32 would be another type, which nobody asks for. */
static cublasStatus_t describe(const struct blas *blas, const struct blas_product *p, const struct key *key, struct call *call)
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
static cublasStatus_t choose(const struct blas *blas, const struct key *key, struct call *call, cublasLtMatmulAlgo_t *out)
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
	const struct key key = key_of(p);
	struct choice *choice = &blas->choice[XXH3_64bits(&key, sizeof key) % CHOICES];
	struct call call;
	cublasStatus_t status = describe(blas, p, &key, &call);
	if (status != CUBLAS_STATUS_SUCCESS)
		return fail(blas, status, "describing", p);
	if (!choice->known || memcmp(&choice->key, &key, sizeof key) != 0) {
		choice->known = 0;
		status = choose(blas, &key, &call, &choice->algorithm);
		if (status != CUBLAS_STATUS_SUCCESS)
			return fail(blas, status, "cuBLASLt's choice of an algorithm", p);
		choice->key = key;
		choice->known = 1;
	}
	const float beta = p->c.data ? 1 : 0;
	status = blas->cublasLtMatmul(blas->handle, &call.product, &p->alpha, p->a.data, &call.a, p->b.data, &call.b, &beta,
	                              p->c.data ? p->c.data : p->d, &call.c, p->d, &call.d, &choice->algorithm, workspace,
	                              BLAS_WORKSPACE_BYTES, stream);
	return status == CUBLAS_STATUS_SUCCESS ? 0 : fail(blas, status, "cuBLASLt", p);
}
