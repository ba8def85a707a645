/* Each matrix product of a layer as the device runs it, against the fastest algorithm that cuBLASLt has for that shape and layout, every
 * one of them timed alone; and the product 8192 cubed, which is called the peak. */
#include "bench/gpu/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_A_ROW = 3 };
enum product_kind { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

/* (T,K) by (N,K): y = x w', dx = dy w, dw += dy' x in fp32. */
struct product {
	int64_t tokens, inner, outer;
	enum product_kind kind;
};

static struct rh_op op_of(struct bench *bench, const struct product *p)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {p->kind == WEIGHT_GRADIENT, p->kind == FORWARD, 1}};
	bench->used = 0;
	struct rh_view x = bench_view(bench, RH_BF16, p->tokens, p->inner), w = bench_view(bench, RH_BF16, p->outer, p->inner);
	struct rh_view y = bench_view(bench, RH_BF16, p->tokens, p->outer);
	op.operand[RH_GEMM_A] = p->kind == FORWARD ? x : y;
	op.operand[RH_GEMM_B] = p->kind == WEIGHT_GRADIENT ? x : w;
	op.operand[RH_GEMM_D] = p->kind == FORWARD ? y : x;
	if (p->kind == WEIGHT_GRADIENT)
		op.operand[RH_GEMM_C] = op.operand[RH_GEMM_D] = bench_view(bench, RH_F32, p->outer, p->inner);
	return op;
}

#ifdef RH_CUDA_EMULATED

static int best_of_all(struct bench *bench, const struct rh_op *op, double *seconds, int *algorithms)
{
	(void)bench, (void)op, (void)seconds;
	*algorithms = 0;
	return 0;
}

#else

#include "cuda/blas_library.h"
#include "cuda/device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

enum { ALGORITHMS = 64, WORKSPACE_BYTES = 32 << 20 };

struct library {
	void *handle;
#define FIELD(name) __typeof__(&name) name;
	BLAS_ENTRIES(FIELD)
#undef FIELD
};

/* A product by columns: the operands change places. */
struct candidate {
	struct library *library;
	cublasLtHandle_t lt;
	cublasLtMatmulDescOpaque_t product;
	cublasLtMatrixLayoutOpaque_t a, b, d;
	const void *a_data, *b_data;
	void *d_data, *workspace;
	float beta;
	const cublasLtMatmulAlgo_t *algorithm;
	cudaStream_t stream;
};

static int load(struct library *library)
{
	library->handle = dlopen(BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	void *entry;
	if (!library->handle)
		return rh_fail(-ENOENT, "%s", dlerror());
#define LOAD(name)                                                                                                                         \
	entry = dlsym(library->handle, #name);                                                                                             \
	memcpy(&library->name, &entry, sizeof entry);                                                                                      \
	if (!entry)                                                                                                                        \
		return rh_fail(-ENOENT, "cuBLASLt has no " #name);
	BLAS_ENTRIES(LOAD)
#undef LOAD
	return 0;
}

static cublasStatus_t layout(struct candidate *c, cublasLtMatrixLayoutOpaque_t *out, const struct rh_view *view)
{
	return c->library->cublasLtMatrixLayoutInit_internal(out, sizeof *out, view->dtype == RH_F32 ? CUDA_R_32F : CUDA_R_16BF,
	                                                     (uint64_t)view->cols, (uint64_t)view->rows, view->stride);
}

static cublasStatus_t describe(struct candidate *c, const struct rh_op *op)
{
	const struct rh_view *a = &op->operand[RH_GEMM_B], *b = &op->operand[RH_GEMM_A], *d = &op->operand[RH_GEMM_D];
	const cublasOperation_t trans[] = {op->gemm.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, op->gemm.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N};
	cublasStatus_t status = c->library->cublasLtMatmulDescInit_internal(&c->product, sizeof c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	c->a_data = a->data, c->b_data = b->data, c->d_data = d->data, c->beta = op->operand[RH_GEMM_C].data ? 1 : 0;
	if (!status)
		status = c->library->cublasLtMatmulDescSetAttribute(&c->product, CUBLASLT_MATMUL_DESC_TRANSA, &trans[0], sizeof trans[0]);
	if (!status)
		status = c->library->cublasLtMatmulDescSetAttribute(&c->product, CUBLASLT_MATMUL_DESC_TRANSB, &trans[1], sizeof trans[1]);
	if (!status)
		status = layout(c, &c->a, a);
	if (!status)
		status = layout(c, &c->b, b);
	return status ? status : layout(c, &c->d, d);
}

static cublasStatus_t multiply(struct candidate *c)
{
	const float one = 1;
	return c->library->cublasLtMatmul(c->lt, &c->product, &one, c->a_data, &c->a, c->b_data, &c->b, &c->beta, c->d_data, &c->d,
	                                  c->d_data, &c->d, c->algorithm, c->workspace, WORKSPACE_BYTES, c->stream);
}

enum { TIMES = 9, WARM = 2 };

static int ascending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Seconds of one run, of as many in a row as our own product is timed with: the median, behind one that keeps the stream busy. By events of
 * its own: the device's are recorded by its worker, at another time than this thread's calls. 0: this algorithm refuses. */
static double time_of(struct candidate *c)
{
	cudaEvent_t from = NULL, to = NULL;
	float taken[TIMES];
	int bad = cudaEventCreate(&from) != cudaSuccess || cudaEventCreate(&to) != cudaSuccess;
	for (int i = -WARM; !bad && i < TIMES; i++) {
		bad = multiply(c) != CUBLAS_STATUS_SUCCESS || cudaEventRecord(from, c->stream) != cudaSuccess;
		for (int k = 0; !bad && k < IN_A_ROW; k++)
			bad = multiply(c) != CUBLAS_STATUS_SUCCESS;
		if (!bad)
			bad = cudaEventRecord(to, c->stream) != cudaSuccess || cudaEventSynchronize(to) != cudaSuccess ||
			      cudaEventElapsedTime(&taken[i < 0 ? 0 : i], from, to) != cudaSuccess;
	}
	if (from)
		(void)cudaEventDestroy(from);
	if (to)
		(void)cudaEventDestroy(to);
	if (bad) {
		(void)cudaGetLastError();
		return 0;
	}
	qsort(taken, TIMES, sizeof *taken, ascending);
	return (double)taken[TIMES / 2] / 1e3 / IN_A_ROW;
}

static int best_of_all(struct bench *bench, const struct rh_op *op, double *seconds, int *algorithms)
{
	static struct library library;
	struct candidate c = {.library = &library};
	cublasLtMatmulPreferenceOpaque_t preference;
	static cublasLtMatmulHeuristicResult_t result[ALGORITHMS];
	const uint64_t workspace_bytes = WORKSPACE_BYTES;
	int rc = library.handle ? 0 : load(&library), found = 0;
	if (rc)
		return rc;
	*algorithms = 0;
	*seconds = 0;
	c.workspace = bench_view(bench, RH_F32, 1, WORKSPACE_BYTES / 4).data;
	cublasStatus_t status = library.cublasLtCreate(&c.lt);
	if (status)
		return rh_fail(-EIO, "cuBLASLt does not start: %d", (int)status);
	status = describe(&c, op);
	if (!status)
		status = library.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference);
	if (!status)
		status = library.cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		                                                      &workspace_bytes, sizeof workspace_bytes);
	if (!status)
		status = library.cublasLtMatmulAlgoGetHeuristic(c.lt, &c.product, &c.a, &c.b, &c.d, &c.d, &preference, ALGORITHMS, result,
		                                                &found);
	c.stream = rh_cuda_stream(bench->device, RH_STREAM_COMPUTE);
	for (int i = 0; !status && i < found; i++) {
		c.algorithm = &result[i].algo;
		double taken = result[i].state ? 0 : time_of(&c);
		*algorithms += taken > 0;
		if (taken > 0 && (!*seconds || taken < *seconds))
			*seconds = taken;
	}
	library.cublasLtDestroy(c.lt);
	return status ? rh_fail(-EIO, "cuBLASLt's algorithms: status %d", (int)status) : 0;
}

#endif

static int one(struct bench *bench, const char *model, const char *name, const struct product *p, double *seconds)
{
	static const char *const kinds[] = {"forward", "input gradient", "weight gradient"};
	double best = 0;
	int algorithms = 0;
	struct rh_op op = op_of(bench, p);
	int rc = bench_op(bench, &op, bench->small ? 1 : IN_A_ROW, seconds);
	if (!rc)
		rc = best_of_all(bench, &op, &best, &algorithms);
	if (!rc)
		bench_line("products",
		           "\"model\": \"%s\", \"product\": \"%s\", \"kind\": \"%s\", \"tokens\": %lld, \"inner\": %lld, \"outer\": %lld, "
		           "\"us\": "
		           "%.1f, \"value\": %.2f, \"unit\": \"TFLOP/s\", \"algorithms\": %d, \"reference\": %.2f, \"ratio\": %.3f, "
		           "\"bar\": 0.95",
		           model, name, kinds[p->kind], (long long)p->tokens, (long long)p->inner, (long long)p->outer, *seconds * 1e6,
		           rh_op_cost(&op).product_flops / *seconds / 1e12, algorithms,
		           best > 0 ? rh_op_cost(&op).product_flops / best / 1e12 : 0, best > 0 ? best / *seconds : 0);
	return rc;
}

struct matrix {
	const char *name;
	int64_t inner, outer;
};

static int layer(struct bench *bench, const char *model, const struct matrix matrix[4], int64_t tokens, double peak)
{
	double total = 0, flops = 0;
	int rc = 0;
	for (int i = 0; !rc && i < 4; i++)
		for (int kind = FORWARD; !rc && kind <= WEIGHT_GRADIENT; kind++) {
			double seconds = 0;
			struct product p = {tokens, bench->small ? 32 : matrix[i].inner, bench->small ? 48 : matrix[i].outer,
			                    (enum product_kind)kind};
			rc = one(bench, model, matrix[i].name, &p, &seconds);
			total += seconds;
			flops += 2 * (double)p.tokens * (double)p.inner * (double)p.outer;
		}
	if (!rc)
		bench_line("products",
		           "\"model\": \"%s\", \"product\": \"a layer's, forward and backward\", \"us\": %.1f, \"value\": %.2f, \"unit\": "
		           "\"TFLOP/s\", \"reference\": %.2f, \"ratio\": %.3f",
		           model, total * 1e6, flops / total / 1e12, peak, peak > 0 ? flops / total / 1e12 / peak : 0);
	return rc;
}

int bench_products(int argc, char **argv)
{
	static const struct matrix small[] = {{"qkv", 2048, 4096}, {"o", 2048, 2048}, {"gate and up", 2048, 12288}, {"down", 6144, 2048}};
	static const struct matrix large[] = {{"qkv", 4096, 6144}, {"o", 4096, 4096}, {"gate and up", 4096, 28672}, {"down", 14336, 4096}};
	struct bench bench;
	double seconds = 0;
	int rc = argc < 1 ? -EINVAL : bench_open(argv[0], strncmp(argv[0], "emu", 3) ? (int64_t)2 << 30 : 2 << 20, &bench);
	if (rc)
		return rc;
	int64_t tokens = bench.small ? 40 : 8192, cube = bench.small ? 48 : 8192;
	struct product peak = {cube, cube, cube, FORWARD};
	rc = one(&bench, "peak", "8192 cubed", &peak, &seconds);
	double rate = seconds > 0 ? 2.0 * (double)cube * (double)cube * (double)cube / seconds / 1e12 : 0;
	const char *part = argc < 2 ? NULL : argv[1];
	if (!rc && (!part || !strcmp(part, "1.7B")))
		rc = layer(&bench, "1.7B", small, tokens, rate);
	if (!rc && (!part || !strcmp(part, "8B")))
		rc = layer(&bench, "8B", large, tokens, rate);
	if (!rc && (!part || !strcmp(part, "experts")))
		rc = bench_grouped(&bench);
	bench_close(&bench);
	return rc;
}
