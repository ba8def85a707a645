/* GLU and ACTIVATION: the curves of enum rh_activation, their slopes, and products with a second half. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

/* The share of a normal distribution below x, and its density at x. erfc(z) = exp(-z^2) t p(t) with t = 1 / (1 + 0.4 z), z = |x| / sqrt 2;
 * p is a minimax fit for z up to 10.5, 2e-7 of the whole. */
SIMD_INLINE vf normal_below(vf x, vf *density)
{
	vf size = vf_max(x, -x), t = 1.0f / (1.0f + size * 0x1.21a186p-2f), bell = vf_exp(-0.5f * x * x);
	vf p = 0x1.59098cp-5f * t - 0x1.280b52p-3f;
	p = p * t + 0x1.7c0ce8p-4f;
	p = p * t + 0x1.3ed704p-4f;
	p = p * t + 0x1.637b7ap-4f;
	p = p * t + 0x1.85e762p-3f;
	p = p * t + 0x1.9f0cdcp-3f;
	p = p * t + 0x1.cf885ap-3f;
	p = p * t + 0x1.ce1caep-3f;
	vf beyond = 0.5f * bell * t * p;
	*density = bell * 0x1.988454p-2f;
	return vf_select(x < (vf){0}, beyond, 1.0f - beyond);
}

/* Curves but for GELU are x sigmoid(bend(x)). */
SIMD_INLINE vf bend(const int act, vf x, vf *slope)
{
	if (act == RH_ACT_GELU_TANH) { /* sqrt(8 / pi) (x + 0.044715 x^3): beyond 30 the sigmoid is 0 or 1 */
		x = vf_min(vf_set(30.0f), vf_max(vf_set(-30.0f), x));
		*slope = 1.59576912f + 0.21406445f * x * x;
		return x * (1.59576912f + 0.07135481f * x * x);
	}
	*slope = vf_set(act == RH_ACT_GPT_OSS ? RH_GPT_OSS_ALPHA : 1.0f);
	return act == RH_ACT_GPT_OSS ? RH_GPT_OSS_ALPHA * x : x;
}

/* f(x) y */
SIMD_INLINE vf curve_times(const int act, vf x, vf y)
{
	vf unused;
	if (act == RH_ACT_TANH)
		return vf_tanh(x) * y;
	if (act == RH_ACT_GELU)
		return x * y * normal_below(x, &unused);
	return x * y / (1.0f + vf_exp(-bend(act, x, &unused)));
}

/* f(x), and its derivative. */
SIMD_INLINE vf curve(const int act, vf x, vf *derivative)
{
	vf slope;
	if (act == RH_ACT_TANH) {
		vf value = vf_tanh(x);
		*derivative = 1.0f - value * value;
		return value;
	}
	if (act == RH_ACT_GELU) {
		vf below = normal_below(x, &slope);
		*derivative = below + x * slope;
		return x * below;
	}
	vf sigmoid = 1.0f / (1.0f + vf_exp(-bend(act, x, &slope)));
	*derivative = sigmoid * (1.0f + x * (1.0f - sigmoid) * slope);
	return x * sigmoid;
}

/* Gates and ups of columns [i, i + VF) of n: two halves of a row, or every other column (RH_ACT_GPT_OSS). */
struct pair {
	vf gate, up;
};

SIMD_INLINE struct pair pair_load(const int act, const void *row, int64_t i, int64_t n, const int bf16)
{
	if (act != RH_ACT_GPT_OSS)
		return (struct pair){act_load(row, i, n - i, bf16), act_load(row, n + i, n - i, bf16)};
	float both[2 * VF] = {0}, gate[VF], up[VF];
	int64_t left = 2 * (n - i);
	vf_store(both, act_load(row, 2 * i, left, bf16));
	if (left > VF)
		vf_store(both + VF, act_load(row, 2 * i + VF, left - VF, bf16));
	for (int k = 0; k < VF; k++) {
		gate[k] = both[2 * k];
		up[k] = both[2 * k + 1];
	}
	return (struct pair){vf_load(gate), vf_load(up)};
}

SIMD_INLINE void pair_store(const int act, void *row, int64_t i, struct pair pair, int64_t n, const int bf16)
{
	if (act != RH_ACT_GPT_OSS) {
		act_store(row, i, pair.gate, n - i, bf16);
		act_store(row, n + i, pair.up, n - i, bf16);
		return;
	}
	float both[2 * VF], gate[VF], up[VF];
	int64_t left = 2 * (n - i);
	vf_store(gate, pair.gate);
	vf_store(up, pair.up);
	for (int k = 0; k < VF; k++) {
		both[2 * k] = gate[k];
		both[2 * k + 1] = up[k];
	}
	act_store(row, 2 * i, vf_load(both), left, bf16);
	if (left > VF)
		act_store(row, 2 * i + VF, vf_load(both + VF), left - VF, bf16);
}

/* gpt-oss: gates are at most the limit, ups within it and then one more. */
SIMD_INLINE struct pair limited(const int act, struct pair in)
{
	if (act != RH_ACT_GPT_OSS)
		return in;
	vf limit = vf_set(RH_GPT_OSS_LIMIT);
	return (struct pair){vf_min(limit, in.gate), vf_min(limit, vf_max(-limit, in.up)) + 1.0f};
}

SIMD_INLINE void glu_forward(const struct rh_op *op, int64_t first, int64_t end, const int act, const int bf16)
{
	struct rh_view gu = op->operand[RH_GLU_GU], a = op->operand[RH_GLU_A];
	int64_t n = a.cols;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(gu, t);
		void *out = row_at(a, t);
		for (int64_t i = 0; i < n; i += VF) {
			struct pair x = limited(act, pair_load(act, in, i, n, bf16));
			act_store(out, i, curve_times(act, x.gate, x.up), n - i, bf16);
		}
	}
}

SIMD_INLINE void glu_gradient(const struct rh_op *op, int64_t first, int64_t end, const int act, const int bf16)
{
	struct rh_view a = op->operand[RH_GLU_BACKWARD_A], dot = op->operand[RH_GLU_BACKWARD_DOT];
	int64_t n = op->operand[RH_GLU_BACKWARD_DA].cols;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(op->operand[RH_GLU_BACKWARD_GU], t), *da = row_at(op->operand[RH_GLU_BACKWARD_DA], t);
		void *dgu = row_at(op->operand[RH_GLU_BACKWARD_DGU], t), *out = a.data ? row_at(a, t) : NULL;
		vf sum = {0};
		for (int64_t i = 0; i < n; i += VF) {
			struct pair raw = pair_load(act, in, i, n, bf16), x = limited(act, raw);
			vf d = act_load(da, i, n - i, bf16), derivative, value = curve(act, x.gate, &derivative);
			struct pair dx = {d * x.up * derivative, d * value};
			if (act == RH_ACT_GPT_OSS) {
				vf limit = vf_set(RH_GPT_OSS_LIMIT);
				dx.gate = vf_select(raw.gate > limit, (vf){0}, dx.gate);
				dx.up = vf_select((raw.up > limit) | (raw.up < -limit), (vf){0}, dx.up);
			}
			pair_store(act, dgu, i, dx, n, bf16);
			sum += d * (value * x.up);
			if (out)
				act_store(out, i, value * x.up, n - i, bf16);
		}
		if (dot.data)
			*(float *)row_at(dot, t) = vf_sum(sum);
	}
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int act, const int bf16)
{
	struct rh_view x = op->operand[RH_ACTIVATION_X];
	float cap = op->activation.cap > 0 ? op->activation.cap : 1, by = 1 / cap;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(x, t);
		void *out = row_at(op->operand[RH_ACTIVATION_Y], t);
		for (int64_t i = 0; i < x.cols; i += VF)
			act_store(out, i, curve_times(act, act_load(in, i, x.cols - i, bf16) * by, vf_set(cap)), x.cols - i, bf16);
	}
}

SIMD_INLINE void gradient(const struct rh_op *op, int64_t first, int64_t end, const int act, const int bf16)
{
	struct rh_view y = op->operand[RH_ACTIVATION_BACKWARD_Y];
	int64_t n = op->operand[RH_ACTIVATION_BACKWARD_X].cols;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(op->operand[RH_ACTIVATION_BACKWARD_X], t), *dy = row_at(op->operand[RH_ACTIVATION_BACKWARD_DY], t);
		void *dx = row_at(op->operand[RH_ACTIVATION_BACKWARD_DX], t), *out = y.data ? row_at(y, t) : NULL;
		for (int64_t i = 0; i < n; i += VF) {
			vf d = act_load(dy, i, n - i, bf16), derivative, value = curve(act, act_load(in, i, n - i, bf16), &derivative);
			act_store(dx, i, d * derivative, n - i, bf16);
			if (out)
				act_store(out, i, value, n - i, bf16);
		}
	}
}

/* Calls the template for the op's dtype and curve. */
#define BY_CURVE(template)                                                                                                                 \
	switch (op->activation.act) {                                                                                                      \
	case RH_ACT_GELU:                                                                                                                  \
		BY_DTYPE(op->operand[0].dtype, template, op, first, end, RH_ACT_GELU);                                                     \
		break;                                                                                                                     \
	case RH_ACT_GELU_TANH:                                                                                                             \
		BY_DTYPE(op->operand[0].dtype, template, op, first, end, RH_ACT_GELU_TANH);                                                \
		break;                                                                                                                     \
	case RH_ACT_GPT_OSS:                                                                                                               \
		BY_DTYPE(op->operand[0].dtype, template, op, first, end, RH_ACT_GPT_OSS);                                                  \
		break;                                                                                                                     \
	case RH_ACT_TANH:                                                                                                                  \
		BY_DTYPE(op->operand[0].dtype, template, op, first, end, RH_ACT_TANH);                                                     \
		break;                                                                                                                     \
	default:                                                                                                                           \
		BY_DTYPE(op->operand[0].dtype, template, op, first, end, RH_ACT_SILU);                                                     \
	}

/* Units are rows, of all four. */
static void glu(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_CURVE(glu_forward)
}

const struct cpu_op SIMD(cpu_glu) = {{{glu, NULL}}};

static void glu_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_CURVE(glu_gradient)
}

const struct cpu_op SIMD(cpu_glu_backward) = {{{glu_backward, NULL}}};

static void activation(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_CURVE(forward)
}

const struct cpu_op SIMD(cpu_activation) = {{{activation, NULL}}};

static void activation_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_CURVE(gradient)
}

const struct cpu_op SIMD(cpu_activation_backward) = {{{activation_backward, NULL}}};
