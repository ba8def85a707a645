/* Products with fp16 sums and of 8-bit operands, each with the passes that make its scales, against the same product of bf16 operands as
 * the device runs it otherwise. */
#include "bench/gpu/bench.h"

#include <string.h>

enum kind { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

/* y = x w', dx = dy w, dw += dy' x: x (T,K), w (N,K). chunk 0: of 8-bit operands. */
struct shape {
	const char *name;
	int64_t tokens, inner, outer, chunk;
	enum kind kind;
};

struct side {
	struct rh_view data, scale;
	double seconds;
};

static int quantise(struct bench *bench, struct rh_view x, enum rh_dtype dtype, int across, int64_t chunk, struct side *out)
{
	struct rh_op op = {.kind = RH_OP_QUANTISE};
	out->data = x;
	out->scale = bench_view(bench, RH_F32, 1, 1);
	op.operand[RH_QUANTISE_X] = x;
	op.operand[RH_QUANTISE_PART] = bench_view(bench, RH_F32, 1, RH_QUANTISE_PARTS);
	op.operand[RH_QUANTISE_SCALE] = out->scale;
	op.quantise.limit = chunk ? rh_half_limit(chunk) : 448;
	if (!chunk) {
		int64_t whole = (x.rows + RH_QUANTISE_RUN - 1) / RH_QUANTISE_RUN * RH_QUANTISE_RUN;
		out->data = across ? bench_view(bench, dtype, x.cols, whole) : bench_view(bench, dtype, x.rows, x.cols);
		op.operand[across ? RH_QUANTISE_T : RH_QUANTISE_Y] = out->data;
	}
	int rc = bench_op(bench, &op, bench->small ? 1 : 3, &out->seconds);
	if (!rc)
		bench_line(
		        "scaled",
		        "\"kernel\": \"quantise%s\", \"rows\": %lld, \"columns\": %lld, \"us\": %.1f, \"value\": %.1f, \"unit\": \"GB/s\"",
		        chunk    ? ", scale alone"
		        : across ? ", transposed"
		                 : "",
		        (long long)x.rows, (long long)x.cols, out->seconds * 1e6,
		        (double)(x.rows * x.cols) * (chunk ? 2 : 5) / out->seconds / 1e9);
	return rc;
}

static int one(struct bench *bench, const struct shape *s)
{
	static const char *const kinds[] = {"forward", "input gradient", "weight gradient"};
	int forward = s->kind == FORWARD, weight = s->kind == WEIGHT_GRADIENT;
	struct rh_op plain = {.kind = RH_OP_GEMM, .gemm = {weight, forward, 1}}, op = {.kind = RH_OP_SCALED_GEMM};
	struct side a, b;
	double wide = 0, seconds = 0;
	bench->used = 0;
	struct rh_view x = bench_view(bench, RH_BF16, s->tokens, s->inner), w = bench_view(bench, RH_BF16, s->outer, s->inner);
	struct rh_view y = bench_view(bench, RH_BF16, s->tokens, s->outer);
	struct rh_view d = forward ? y : weight ? bench_view(bench, RH_F32, s->outer, s->inner) : x;
	plain.operand[RH_GEMM_A] = forward ? x : y;
	plain.operand[RH_GEMM_B] = weight ? x : w;
	plain.operand[RH_GEMM_D] = d;
	int rc = bench_op(bench, &plain, bench->small ? 1 : 3, &wide);
	if (!rc)
		rc = quantise(bench, plain.operand[RH_GEMM_A], forward ? RH_E4M3 : RH_E5M2, weight, s->chunk, &a);
	if (!rc)
		rc = quantise(bench, plain.operand[RH_GEMM_B], RH_E4M3, !forward, s->chunk, &b);
	if (rc)
		return rc;
	op.scaled_gemm.trans_a = s->chunk ? weight : 0;
	op.scaled_gemm.trans_b = s->chunk ? forward : 1;
	op.scaled_gemm.alpha = 1;
	op.scaled_gemm.chunk = s->chunk;
	op.operand[RH_SCALED_GEMM_A] = a.data;
	op.operand[RH_SCALED_GEMM_B] = b.data;
	op.operand[RH_SCALED_GEMM_SCALE_A] = a.scale;
	op.operand[RH_SCALED_GEMM_SCALE_B] = b.scale;
	op.operand[RH_SCALED_GEMM_D] = d;
	rc = bench_op(bench, &op, bench->small ? 1 : 3, &seconds);
	double flops = rh_op_cost(&op).product_flops, whole = seconds + a.seconds + b.seconds;
	if (!rc)
		bench_line(
		        "scaled",
		        "\"way\": \"%s\", \"chunk\": %lld, \"product\": \"%s\", \"kind\": \"%s\", \"tokens\": %lld, \"inner\": %lld, "
		        "\"outer\": %lld, \"us\": %.1f, \"scales_us\": %.1f, \"value\": %.2f, \"unit\": \"TFLOP/s\", \"reference\": %.2f, "
		        "\"ratio\": %.3f, \"ratio_with_scales\": %.3f",
		        s->chunk ? "fp16 sums" : "fp8", (long long)s->chunk, s->name, kinds[s->kind], (long long)s->tokens,
		        (long long)s->inner, (long long)s->outer, seconds * 1e6, (a.seconds + b.seconds) * 1e6, flops / seconds / 1e12,
		        flops / wide / 1e12, wide / seconds, wide / whole);
	return rc;
}

int bench_scaled(int argc, char **argv)
{
	static const struct shape shapes[] = {{"qkv", 8192, 4096, 6144, 0, FORWARD},
	                                      {"gate and up", 8192, 4096, 28672, 0, FORWARD},
	                                      {"down", 8192, 14336, 4096, 0, FORWARD}};
	static const int64_t chunks[] = {32, 128, 512, 0};
	struct bench bench;
	int rc = argc < 1 ? -EINVAL : bench_open(argv[0], strncmp(argv[0], "emu", 3) ? (int64_t)3 << 30 : 2 << 20, &bench);
	if (rc)
		return rc;
	int eight = !rh_devices_check_fp8(argv[0]);
	for (size_t i = 0; !rc && i < (bench.small ? 1 : sizeof shapes / sizeof *shapes); i++)
		for (int kind = FORWARD; !rc && kind <= WEIGHT_GRADIENT; kind++)
			for (size_t c = 0; !rc && c < sizeof chunks / sizeof *chunks; c++) {
				struct shape s = shapes[i];
				if (bench.small)
					s.tokens = 40, s.inner = 32, s.outer = 48;
				s.kind = (enum kind)kind;
				s.chunk = chunks[c];
				if (s.chunk || eight)
					rc = one(&bench, &s);
			}
	bench_close(&bench);
	return rc;
}
