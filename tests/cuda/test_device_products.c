/* GEMM and HEAD_LOSS through the device: rows become columns for BLAS, which the emulation takes by its definition. */
#include "device_case.h"

#include "cudaemu_control.h"
#include "fused_case.h"
#include "launches.h"
#include "scaled_case.h"
#include "top_case.h"

/* k products of values below 1, summed in fp32. */
static double sum_error(int64_t k)
{
	return (double)(k + 4) * 0x1p-22;
}

static void check_gemm(const struct device_case *on, int variant, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_GEMM}};
	int trans_a = variant & 1, trans_b = variant >> 1 & 1, adds = variant >> 2 & 3, biased = variant >> 4 & 1, wide = variant >> 5 & 1;
	enum rh_dtype act = variant >> 6 & 1 ? RH_BF16 : RH_F32, out = wide ? RH_F32 : act;
	int64_t m = case_between(seed, 1, 40), n = case_between(seed, 1, 40), k = variant % 13 ? case_between(seed, 1, 50) : 0;
	int64_t pad = check_random(seed) % 3;
	if (variant % 10 == 0) /* rows on 16 bytes */
		n = (n + 7) / 8 * 8, pad = pad / 2 * 8;
	char label[96];
	snprintf(label, sizeof label, "variant %d: %lldx%lldx%lld", variant, (long long)m, (long long)n, (long long)k);
	c.op.gemm.trans_a = trans_a;
	c.op.gemm.trans_b = trans_b;
	c.op.gemm.alpha = 0.75f;
	case_operand(&c, RH_GEMM_A, act, trans_a ? k : m, trans_a ? m : k, pad, FILL_RANDOM);
	case_operand(&c, RH_GEMM_B, act, trans_b ? n : k, trans_b ? k : n, 2 * pad, FILL_RANDOM);
	case_operand(&c, RH_GEMM_D, out, m, n, pad, adds == 1 ? FILL_RANDOM : FILL_POISON);
	if (adds == 1)
		case_alias(&c, RH_GEMM_C, RH_GEMM_D);
	else if (adds)
		case_operand(&c, RH_GEMM_C, out, m, n, 3, FILL_RANDOM);
	if (biased)
		case_operand(&c, RH_GEMM_BIAS, act, 1, n, 0, FILL_RANDOM);
	/* A bias apart from its product, which a fused one's alignment makes it, is rounded once more: numbers of at most 8. So is a fused
	 * one by some of cuBLASLt's algorithms for narrow matrices. */
	int skew = variant % 5, fused_exactly = !CASE_ON_GPU && k && !skew && (n + pad) % 8 == 0 && n % 8 == 0;
	c.tolerance[RH_GEMM_D] = sum_error(k) + (biased && out == RH_BF16 && !fused_exactly ? 8 * 0x1p-9 : 0);
	device_case_check(on, &c, skew, label);
}

static void test_gemm_of_all_variants_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	for (int variant = 0; variant < 128; variant++)
		check_gemm(&on, variant, &seed);
	on.device->ops->close(on.device);
	cudaemu_release();
}

static struct device_case scaled_device;

static void check_scaled(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	device_case_check(&scaled_device, c, 0, "scaled");
}

/* 8-bit operands by cuBLASLt, fp16 sums by a kernel, and what both begin with. */
static void test_scaled_gemm_equals_the_oracle(void **state)
{
	(void)state;
	scaled_device = device_case_open();
	if (!rh_cuda_check_fp8(0))
		scaled_gemm_each(scaled_eight, sizeof scaled_eight / sizeof *scaled_eight, check_scaled);
	rh_error_clear();
	scaled_gemm_each(scaled_half, 4, check_scaled);
	scaled_quantise_each(check_scaled);
	scaled_transpose_each(check_scaled);
	scaled_device.device->ops->close(scaled_device.device);
	cudaemu_release();
}

static struct device_case fused_device;

static void check_fused(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	device_case_check(&fused_device, c, 0, "fused");
}

/* Through the device, where kernels take what they can and parts do the rest. */
static void test_fused_ops_equal_the_oracle(void **state)
{
	(void)state;
	fused_device = device_case_open();
	fused_lora_each(check_fused);
	fused_heads_each(check_fused);
	fused_add_rmsnorm_each(check_fused);
	fused_device.device->ops->close(fused_device.device);
	cudaemu_release();
}

/* The largest error of an 8-bit product of depth k in fp32, the magnitudes that it is judged by, and what fp32 sums would be off by. */
static double eight_error(int64_t k, int extras, double *magnitude, double *wide, uint64_t *seed)
{
	const struct scaled_shape shape = {.m = 16, .n = 16, .k = k, .trans_b = 1, .extras = SCALED_F32 | extras};
	struct op_case c = scaled_gemm_case(&shape, seed), want = case_clone(&c);
	double worst = 0;
	rh_op_oracle(&want.op);
	device_case_run(&scaled_device, &c, 0);
	for (int64_t m = 0; m < shape.m; m++)
		for (int64_t n = 0; n < shape.n; n++)
			worst = fmax(worst, fabs(case_get(c.op.operand[RH_SCALED_GEMM_D], m, n) -
			                         case_get(want.op.operand[RH_SCALED_GEMM_D], m, n)));
	*magnitude = scaled_magnitude(&c.op);
	*wide = sum_error(k) * case_get(c.op.operand[RH_SCALED_GEMM_SCALE_A], 0, 0) * case_get(c.op.operand[RH_SCALED_GEMM_SCALE_B], 0, 0);
	case_free(&want);
	case_free(&c);
	return worst;
}

/* Sums of 8-bit products keep 13 to 14 bits on the GPUs that have them, which the emulation does as they do. A bar as of fp32 sums would
 * not be met. What operands of one sign lose is printed only. */
static void test_scaled_gemm_of_8_bits_keeps_within_its_accumulator(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	if (rh_cuda_check_fp8(0)) {
		rh_error_clear();
		check_skip("8-bit products: this GPU has none");
	}
	scaled_device = device_case_open();
	for (int64_t k = 64; k <= 4096; k *= 8) {
		double magnitude, wide, error = eight_error(k, 0, &magnitude, &wide, &seed);
		print_message("8-bit products, depth %lld: off by 2^%.1f of the magnitudes' sum", (long long)k, log2(error / magnitude));
		assert_true(error <= magnitude * 0x1p-11);
#ifndef RH_ON_GPU
		assert_true(error > wide);
#endif
		error = eight_error(k, SCALED_POSITIVE, &magnitude, &wide, &seed);
		print_message("; of one sign by 2^%.1f\n", log2(error / magnitude));
	}
	scaled_device.device->ops->close(scaled_device.device);
	cudaemu_release();
}

/* Rows of a mixture, of the task alone and of the divergence alone. */
static void add_teacher(struct op_case *c, int64_t n, int64_t vocabulary, int index)
{
	static const double mixes[3][2] = {{0.5, 0.5}, {1, 0}, {0, 1}};
	if (c->op.head_loss.top)
		case_top_teacher(c, n, vocabulary, index % 3);
	else
		case_operand(c, RH_HEAD_LOSS_TEACHER, RH_F32, n, vocabulary, index % 3, FILL_RANDOM);
	struct rh_view mix = case_operand(c, RH_HEAD_LOSS_MIX, RH_F32, n, 2, 0, FILL_NONE);
	for (int64_t i = 0; i < 2 * n; i++)
		case_put(mix, i / 2, i % 2, mixes[(index + i / 2) % 3][i % 2]);
	c->op.head_loss.temperature = index % 4 ? 2 : 1;
	c->op.head_loss.divergence = index & 1 ? RH_DIVERGENCE_REVERSE : RH_DIVERGENCE_FORWARD;
}

/* gradients: bits; teacher: 0: none; else which of several; top: 0: of logits; else of so many shares, and shares are made */
struct head {
	enum rh_dtype act;
	int64_t n, vocabulary, hidden;
	int gradients, teacher;
	int64_t top;
};

static void check_head(const struct device_case *on, const struct head *head, uint64_t *seed)
{
	enum rh_dtype act = head->act;
	int64_t n = head->n, vocabulary = head->vocabulary, hidden = head->hidden;
	int gradients = head->gradients, teacher = head->teacher;
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_HEAD_LOSS}};
	int64_t chunk = n > 3 ? 3 : n > 0 ? n : 1, pad = check_random(seed) % 3;
	double scale = 0.125, rounding = act == RH_BF16 ? 0x1p-8 : 0x1p-20;
	char label[96];
	snprintf(label, sizeof label, "%s n %lld V %lld H %lld gradients %d teacher %d", rh_dtype_name(act), (long long)n,
	         (long long)vocabulary, (long long)hidden, gradients, teacher);
	c.op.head_loss.scale = (float)scale;
	c.op.head_loss.alpha = n % 2 ? 0.75f : 0;
	case_operand(&c, RH_HEAD_LOSS_H, act, n, hidden, pad, FILL_RANDOM);
	case_operand(&c, RH_HEAD_LOSS_W, act, vocabulary, hidden, pad, FILL_RANDOM);
	struct rh_view target = case_operand(&c, RH_HEAD_LOSS_TARGET, RH_I32, n, 1, 0, FILL_NONE);
	for (int64_t i = 0; i < n; i++)
		case_put(target, i, 0, (double)(check_random(seed) % vocabulary));
	case_operand(&c, RH_HEAD_LOSS_LOGITS, RH_F32, chunk, vocabulary, 0, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_LOSS, RH_F32, n, 1, pad, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_HIT, RH_I32, n, 1, pad, FILL_NONE);
	if (hidden % 2) { /* with an adapter */
		case_operand(&c, RH_HEAD_LOSS_LOW, act, n, 5, pad, FILL_RANDOM);
		case_operand(&c, RH_HEAD_LOSS_UP, act, vocabulary, 5, pad, FILL_RANDOM);
	}
	if (hidden % 2 && gradients & 1)
		case_operand(&c, RH_HEAD_LOSS_DLOW, act, n, 5, pad, FILL_POISON);
	if (hidden % 2 && gradients & 2)
		case_operand(&c, RH_HEAD_LOSS_DUP, RH_F32, vocabulary, 5, pad, FILL_RANDOM);
	if (gradients & 1)
		case_operand(&c, RH_HEAD_LOSS_DH, act, n, hidden, pad, FILL_POISON);
	if (gradients & 2)
		case_operand(&c, RH_HEAD_LOSS_DW, RH_F32, vocabulary, hidden, pad, FILL_RANDOM);
	c.op.head_loss.top = head->top;
	c.op.head_loss.temperature = 2;
	if (head->top) {
		case_operand(&c, RH_HEAD_LOSS_SHARES, RH_F32, n, 2 * head->top, pad, FILL_POISON);
		c.tolerance[RH_HEAD_LOSS_SHARES] = 4 * sum_error(hidden); /* ids are whole numbers */
	}
	if (!teacher && n % 2) { /* a weight for each row */
		struct rh_view mix = case_operand(&c, RH_HEAD_LOSS_MIX, RH_F32, n, 1, 0, FILL_NONE);
		for (int64_t i = 0; i < n; i++)
			case_put(mix, i, 0, (double)(i % 5) / 2 - 1);
	}
	if (teacher) {
		add_teacher(&c, n, vocabulary, teacher);
		scale *= 6; /* a divergence's gradients sum to less than twice the temperature times the largest logarithm */
	}
	c.tolerance[RH_HEAD_LOSS_LOSS] = (teacher ? 8 : 2) * sum_error(hidden) + (double)vocabulary * 0x1p-24;
	c.tolerance[RH_HEAD_LOSS_DH] = 2 * scale * (rounding + sum_error(hidden)); /* a row's gradients sum to less than twice the scale */
	c.tolerance[RH_HEAD_LOSS_DW] = (double)n * scale * (rounding + sum_error(hidden));
	c.tolerance[RH_HEAD_LOSS_DLOW] = c.tolerance[RH_HEAD_LOSS_DH];
	c.tolerance[RH_HEAD_LOSS_DUP] = c.tolerance[RH_HEAD_LOSS_DW];
	device_case_check(on, &c, 0, label);
}

static void test_head_loss_equals_the_oracle(void **state)
{
	(void)state;
	static const int64_t vocabularies[] = {1, 2, 33, 511, 512, 700, 2049, 4603};
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++)
		for (int gradients = 0; gradients < 4; gradients++) {
			enum rh_dtype act = (gradients + (int)i) & 1 ? RH_BF16 : RH_F32;
			check_head(&on,
			           &(struct head){act, case_between(&seed, 0, 7), vocabularies[i], case_between(&seed, 1, 24), gradients, 0,
			                          0},
			           &seed);
			check_head(&on, &(struct head){act == RH_F32 ? RH_BF16 : RH_F32, 4, vocabularies[i], 8, gradients, 0, 0}, &seed);
		}
	on.device->ops->close(on.device);
	cudaemu_release();
}

static void test_head_loss_with_a_teacher_equals_the_oracle(void **state)
{
	(void)state;
	static const int64_t outputs[] = {1, 2, 10, 31, 64, 100, 1000};
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
		for (int k = 1; k < 9; k++)
			check_head(&on,
			           &(struct head){k & 4 ? RH_BF16 : RH_F32, case_between(&seed, 1, 19), outputs[i],
			                          case_between(&seed, 1, 24), k % 4, k, 0},
			           &seed);
	on.device->ops->close(on.device);
	cudaemu_release();
}

static void test_head_loss_with_top_shares_equals_the_oracle(void **state)
{
	(void)state;
	static const int64_t outputs[] = {1, 2, 31, 257, 1000, 2300};
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
		for (int k = 0; k < 9; k++) {
			int64_t top = k % 3 == 0 ? 1 : k % 3 == 1 ? outputs[i] : case_between(&seed, 1, outputs[i]);
			check_head(&on,
			           &(struct head){k & 4 ? RH_BF16 : RH_F32, case_between(&seed, 1, 7), outputs[i],
			                          case_between(&seed, 1, 24), k % 4, k, top},
			           &seed);
		}
	on.device->ops->close(on.device);
	cudaemu_release();
}

/* Of equal logits the lower ids are told, across a block's warps, and of a NaN nothing is. */
static void test_top_shares_of_equal_logits_are_the_first(void **state)
{
	(void)state;
	enum { VOCABULARY = 1500, TOP = 700, ABOVE = 300 };
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	struct op_case c = {.seed = &seed, .op = {.kind = RH_OP_HEAD_LOSS, .head_loss = {.temperature = 1, .top = TOP}}};
	struct rh_view h = case_operand(&c, RH_HEAD_LOSS_H, RH_F32, 2, 1, 0, FILL_NONE),
	               w = case_operand(&c, RH_HEAD_LOSS_W, RH_F32, VOCABULARY, 1, 0, FILL_NONE);
	case_put(h, 0, 0, 1);
	case_put(h, 1, 0, (double)NAN);
	for (int v = 0; v < VOCABULARY; v++) /* each fifth is larger, 300 in all, so of the others the first 400 are told */
		case_put(w, v, 0, v % 5 == 4);
	struct rh_view target = case_operand(&c, RH_HEAD_LOSS_TARGET, RH_I32, 2, 1, 0, FILL_NONE);
	case_put(target, 0, 0, 0);
	case_put(target, 1, 0, 0);
	case_operand(&c, RH_HEAD_LOSS_LOGITS, RH_F32, 2, VOCABULARY, 0, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_LOSS, RH_F32, 2, 1, 0, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_HIT, RH_I32, 2, 1, 0, FILL_NONE);
	struct rh_view shares = case_operand(&c, RH_HEAD_LOSS_SHARES, RH_F32, 2, 2 * TOP, 0, FILL_POISON);
	device_case_run(&on, &c, 0);
	double sum = ABOVE * exp(1) + VOCABULARY - ABOVE;
	for (int v = 0, found = 0, others = 0; v < VOCABULARY; v++) {
		int is_larger = v % 5 == 4;
		if (!is_larger && others++ >= TOP - ABOVE)
			continue;
		assert_int_equal((int)case_get(shares, 0, found), v);
		check_near(case_get(shares, 0, TOP + found++), (is_larger ? exp(1) : 1) / sum, 1e-8);
	}
	for (int i = 0; i < 2 * TOP; i++)
		assert_true(isnan(case_get(shares, 1, i)));
	case_free(&c);
	on.device->ops->close(on.device);
	cudaemu_release();
}

/* Of equal logits the first is the largest: a hit only there. */
static void test_head_loss_of_equal_logits_hits_the_first(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct device_case on = device_case_open();
	struct op_case c = {.seed = &seed, .op = {.kind = RH_OP_HEAD_LOSS}};
	enum { ROWS = 3, VOCABULARY = 1500 };
	static const int32_t targets[ROWS] = {0, 1, 1499};
	case_operand(&c, RH_HEAD_LOSS_H, RH_F32, ROWS, 1, 0, FILL_RANDOM);
	case_operand(&c, RH_HEAD_LOSS_W, RH_F32, VOCABULARY, 1, 0, FILL_NONE);
	struct rh_view target = case_operand(&c, RH_HEAD_LOSS_TARGET, RH_I32, ROWS, 1, 0, FILL_NONE);
	for (int i = 0; i < ROWS; i++)
		case_put(target, i, 0, targets[i]);
	memset(c.op.operand[RH_HEAD_LOSS_W].data, 0, VOCABULARY * 4);
	case_operand(&c, RH_HEAD_LOSS_LOGITS, RH_F32, ROWS, VOCABULARY, 0, FILL_POISON);
	struct rh_view loss = case_operand(&c, RH_HEAD_LOSS_LOSS, RH_F32, ROWS, 1, 0, FILL_POISON);
	struct rh_view hit = case_operand(&c, RH_HEAD_LOSS_HIT, RH_I32, ROWS, 1, 0, FILL_NONE);
	device_case_run(&on, &c, 0);
	for (int i = 0; i < ROWS; i++) {
		assert_int_equal((int)case_get(hit, i, 0), i == 0);
		assert_true(fabs(case_get(loss, i, 0) - log(VOCABULARY)) < 1e-5);
	}
	case_free(&c);
	on.device->ops->close(on.device);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gemm_of_all_variants_equals_the_oracle),
	        cmocka_unit_test(test_scaled_gemm_equals_the_oracle),
	        cmocka_unit_test(test_scaled_gemm_of_8_bits_keeps_within_its_accumulator),
	        cmocka_unit_test(test_fused_ops_equal_the_oracle),
	        cmocka_unit_test(test_head_loss_equals_the_oracle),
	        cmocka_unit_test(test_head_loss_with_a_teacher_equals_the_oracle),
	        cmocka_unit_test(test_head_loss_with_top_shares_equals_the_oracle),
	        cmocka_unit_test(test_top_shares_of_equal_logits_are_the_first),
	        cmocka_unit_test(test_head_loss_of_equal_logits_hits_the_first),
	};
	atexit(kernel_write_launches);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
