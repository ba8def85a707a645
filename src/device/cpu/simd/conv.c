/* The causal convolution of each column. A task is a run of columns through all rows, whose last RH_CONV_MOST - 1 stay in cache. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

/* Some columns: weights by tap, and what a vector of columns is read from. */
struct conv {
	struct rh_view x, start;
	int64_t first, end, taps, documents;
	float w[RH_CONV_MOST][CPU_COLUMNS];
};

SIMD_INLINE void conv_begin(const struct rh_op *op, int64_t first, int64_t end, struct conv *out, const int bf16)
{
	struct rh_view w = op->operand[RH_CONV_W];
	*out = (struct conv){op->operand[RH_CONV_X], op->operand[RH_CONV_START], first, end, w.cols, op->conv.documents, {{0}}};
	for (int64_t c = first; c < end; c++)
		for (int64_t j = 0; j < w.cols; j++) {
			const void *row = row_at(w, c);
			out->w[j][c - first] = bf16 ? rh_bf16_to_f32(((const uint16_t *)row)[j]) : ((const float *)row)[j];
		}
}

SIMD_INLINE int64_t row_of(const struct conv *conv, int64_t document)
{
	return index_at(conv->start, document, conv->x.rows + 1);
}

/* The vector at column i of row t, which may lie before the document's first: then in the tail, where there is one, or zero. */
SIMD_INLINE vf row_before(const struct conv *conv, struct rh_view tail, int64_t start, int64_t t, int64_t i, const int bf16)
{
	if (t >= start)
		return act_load(row_at(conv->x, t), i, conv->end - i, bf16);
	t += tail.rows - start;
	return tail.data && t >= 0 ? act_load(row_at(tail, t), i, conv->end - i, bf16) : (vf){0};
}

SIMD_INLINE vf convolved(const struct conv *conv, struct rh_view tail, int64_t start, int64_t t, int64_t i, const int bf16)
{
	vf sum = {0};
	for (int64_t j = 0; j < conv->taps; j++)
		sum += vf_load(conv->w[j] + i - conv->first) * row_before(conv, tail, start, t - conv->taps + 1 + j, i, bf16);
	return sum;
}

SIMD_INLINE vf sigmoid(vf x)
{
	return 1.0f / (1.0f + vf_exp(-x));
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct conv conv;
	conv_begin(op, first, end, &conv, bf16);
	for (int64_t d = 0; d < conv.documents; d++) {
		struct rh_view tail = d ? (struct rh_view){0} : op->operand[RH_CONV_TAIL];
		for (int64_t t = row_of(&conv, d); t < row_of(&conv, d + 1); t++)
			for (int64_t i = first; i < end; i += VF) {
				vf z = convolved(&conv, tail, row_of(&conv, d), t, i, bf16);
				act_store(row_at(op->operand[RH_CONV_Y], t), i, z * sigmoid(z), end - i, bf16);
			}
	}
}

/* Upwards: what is read lies above what is written. */
SIMD_INLINE void keep_end(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view to = op->operand[RH_CONV_END], tail = op->conv.documents > 1 ? (struct rh_view){0} : op->operand[RH_CONV_TAIL];
	struct conv conv;
	conv_begin(op, first, end, &conv, bf16);
	int64_t start = row_of(&conv, conv.documents - 1), row = row_of(&conv, conv.documents) - to.rows;
	for (int64_t r = 0; r < to.rows; r++)
		for (int64_t i = first; i < end; i += VF)
			act_store(row_at(to, r), i, row_before(&conv, tail, start, row + r, i, bf16), end - i, bf16);
}

/* Units are columns, at most CPU_COLUMNS at once. */
static void conv_forward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_CONV_X].dtype, forward, op, first, end);
	if (op->operand[RH_CONV_END].data)
		BY_DTYPE(op->operand[RH_CONV_X].dtype, keep_end, op, first, end);
}

static struct cpu_span over_channels(const struct rh_op *op)
{
	return over_columns(op->operand[RH_CONV_X]);
}

const struct cpu_op SIMD(cpu_conv) = {{{conv_forward, over_channels}}};

/* Of a vector of columns: gradients of the sums at a row and at those behind it, in a ring; those at the first document's first rows. And
 * sums of 64 rows first, as elsewhere. */
struct ring {
	vf dz[RH_CONV_MOST], first[RH_CONV_MOST], sum[RH_CONV_MOST], total[RH_CONV_MOST];
};

SIMD_INLINE void flush(struct ring *ring, int64_t taps)
{
	for (int64_t j = 0; j < taps; j++) {
		ring->total[j] += ring->sum[j];
		ring->sum[j] = (vf){0};
	}
}

/* Gradients of the sums at the rows behind a document, of which those behind the last one are known. */
SIMD_INLINE void begin_ring(const struct rh_op *op, const struct conv *conv, int64_t document, int64_t i, struct ring *ring)
{
	struct rh_view d_end = op->operand[RH_CONV_BACKWARD_D_END];
	int64_t end = row_of(conv, document + 1);
	for (int64_t j = 0; j < conv->taps; j++)
		ring->dz[j] = (vf){0};
	for (int64_t j = 0; j + 1 < conv->taps && d_end.data && document + 1 == conv->documents; j++)
		ring->dz[(end + j) % conv->taps] = act_load(row_at(d_end, j), i, conv->end - i, 0);
}

/* A document's rows, the last one first. */
SIMD_INLINE void document_back(const struct rh_op *op, const struct conv *conv, int64_t document, int64_t i, struct ring *ring,
                               const int bf16)
{
	struct rh_view dy = op->operand[RH_CONV_BACKWARD_DY], dx = op->operand[RH_CONV_BACKWARD_DX], tail = {0};
	int64_t start = row_of(conv, document), taps = conv->taps;
	if (!document)
		tail = op->operand[RH_CONV_BACKWARD_TAIL];
	begin_ring(op, conv, document, i, ring);
	for (int64_t t = row_of(conv, document + 1) - 1; t >= start; t--) {
		vf z = convolved(conv, tail, start, t, i, bf16), s = sigmoid(z), gradient = {0};
		vf dz = act_load(row_at(dy, t), i, conv->end - i, bf16) * (s + z * s * (1.0f - s));
		ring->dz[t % taps] = dz;
		for (int64_t j = 0; j < taps; j++) {
			gradient += vf_load(conv->w[taps - 1 - j] + i - conv->first) * ring->dz[(t + j) % taps];
			ring->sum[j] += dz * row_before(conv, tail, start, t - taps + 1 + j, i, bf16);
		}
		act_store(row_at(dx, t), i, gradient, conv->end - i, bf16);
		if (t % 64 == 0)
			flush(ring, taps);
	}
	flush(ring, taps);
	for (int64_t j = 0; j + 1 < taps && !document; j++)
		ring->first[j] = ring->dz[(start + j) % taps];
}

SIMD_INLINE void backward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct conv conv;
	float *dw = op->operand[RH_CONV_BACKWARD_DW].data;
	struct rh_view d_tail = op->operand[RH_CONV_BACKWARD_D_TAIL];
	int64_t dw_stride = op->operand[RH_CONV_BACKWARD_DW].stride;
	conv_begin(op, first, end, &conv, bf16);
	for (int64_t i = first; i < end; i += VF) {
		struct ring ring = {0};
		for (int64_t d = 0; d < conv.documents; d++)
			document_back(op, &conv, d, i, &ring, bf16);
		for (int64_t j = 0; j + 1 < conv.taps && d_tail.data; j++) /* may lie where the last document's d_end was read */
			act_store(row_at(d_tail, j), i, ring.first[j], end - i, 0);
		for (int64_t j = 0; j < conv.taps && dw; j++) {
			float of[VF];
			vf_store(of, ring.total[j]);
			for (int64_t c = i; c < end && c < i + VF; c++)
				dw[c * dw_stride + j] += of[c - i];
		}
	}
}

static void conv_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_CONV_X].dtype, backward, op, first, end);
}

const struct cpu_op SIMD(cpu_conv_backward) = {{{conv_backward, over_channels}}};
