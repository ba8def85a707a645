/* Linear attention with the gated delta rule, a mixer: Out(norm(delta(conv(QKV x), B x, A x)) * silu(Z x)), where conv is causal and each
 * column's own, with silu behind it, delta is the rule (device/op.h) and the norm is over each value head. It carries the rule's state, in
 * fp32, and the inputs of the convolution that later tokens see. Of a text in chunks a backward slot has both before each chunk but the
 * first (emit->sums), and in their own place the gradients that the chunk behind has left: that of the state, and those of the
 * convolution's sums at its first tokens. The first document of a chunk begins with what is carried where it has begun before.
 *
 * Files of Qwen3-Next have q, k, v and z in one linear, and b and a in another, each key head's part of all behind the one before it. Here
 * that linear's rows are in the order of those of apart ones, which its adapter's B and its files need to know (struct rh_row_groups); z is
 * copied out of what it makes.
 *
 * Rows of the activation table: what the linears make, what the convolution and the rule make, and norms' statistics; the backward makes
 * the input of Out again, and the gradients of what the linears made. */
#include "model/half.h"

/* Its linears; its tensors, beside theirs; its rows. */
enum { IN_QKV = RH_PROJ_MIXER, IN_Z, IN_B, IN_A, OUT_PROJ };
enum { CONV_W, A_LOG, DT_BIAS, NORM_W };
enum { QKV = RH_ROW_MIXER, Z, BA, CONV, OUT, RSTD, NORMED, D_QKV, D_Z, D_BA };

/* Of the rule's workspace in one launch, where more than a key head takes more. */
enum { MOST_SPACE_BYTES = 256 << 20 };

static int64_t keys_of(const struct rh_traits *traits)
{
	return traits->delta_key_heads * traits->delta_key;
}

static int64_t values_of(const struct rh_traits *traits)
{
	return traits->delta_heads * traits->delta_value;
}

static int64_t channels_of(const struct rh_traits *traits)
{
	return 2 * keys_of(traits) + values_of(traits);
}

/* ---- layout ---- */

/* Does the first linear make z too? */
static int has_z(const struct rh_layer *layer)
{
	return !layer->proj[IN_Z].outputs;
}

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t keys = traits->delta_key_heads, per_key = traits->delta_heads / keys, values = per_key * traits->delta_value;
	int is_fused = !rh_proj_name(rh_model_names(config), traits->mixer, traits->mlp, IN_Z);
	layout_size(config, layer, IN_QKV, layer->width, channels_of(traits), 0);
	layout_size(config, layer, IN_Z, layer->width, values_of(traits), is_fused);
	layout_size(config, layer, IN_B, layer->width, traits->delta_heads, 0);
	layout_size(config, layer, IN_A, layer->width, traits->delta_heads, 1);
	layout_size(config, layer, OUT_PROJ, values_of(traits), layer->width, 0);
	if (!is_fused)
		return;
	layer->proj[IN_QKV].groups = (struct rh_row_groups){keys, {traits->delta_key, traits->delta_key, values, values}};
	layer->proj[IN_B].groups = (struct rh_row_groups){keys, {per_key, per_key}};
}

/* transformers' trainer spares what has "bias" or "norm" in its name: of these four the last two. */
static void place_own(const struct rh_model_config *config, const struct rh_traits *traits, int *own, struct layout *at)
{
	const struct rh_family_names *names = rh_model_names(config);
	layout_align(at);
	own[CONV_W] = layout_place(at, names->conv, "weight", 2, channels_of(traits), traits->taps);
	layout_align(at);
	own[A_LOG] = layout_place(at, names->a_log, NULL, 1, 1, traits->delta_heads);
	layout_align(at);
	own[DT_BIAS] = layout_place(at, names->dt_bias, NULL, 1, 1, traits->delta_heads);
	if (at->fault)
		return;
	struct rh_tensor *tensor = at->block->tensor;
	const int64_t in_files[4] = {channels_of(traits), 1, traits->taps, 0};
	for (int i = 0; i < 4; i++)
		tensor[own[CONV_W]].file_shape[i] = in_files[i];
	tensor[own[A_LOG]].decays = 1;
	tensor[own[A_LOG]].initial = (struct rh_initial){RH_INITIAL_LOG_UNIFORM, 16};
	tensor[own[DT_BIAS]].initial = (struct rh_initial){RH_INITIAL_CONSTANT, 1};
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	switch (kind) {
	case HALF_NORMS:
		layer->own[RH_MIXER][NORM_W] =
		        layout_place_norm(at, rh_model_names(config)->gated_norm, RH_NORM_RMS, layer->traits.delta_value);
		break;
	case HALF_WEIGHTS:
		layout_weights(config, layer, at, RH_PROJ_MIXER, RH_PROJ_MLP - RH_PROJ_MIXER);
		break;
	case HALF_BIASES:
		place_own(config, &layer->traits, layer->own[RH_MIXER], at);
		break;
	}
}

static int64_t state_bytes(const struct rh_traits *traits)
{
	return rh_align_up(traits->delta_heads * traits->delta_key * traits->delta_value * 4, RH_ALIGN);
}

/* The state, then the convolution's inputs, in any dtype. */
static struct rh_carried carries(const struct rh_layer *layer)
{
	int64_t tail = (layer->traits.taps - 1) * channels_of(&layer->traits) * 4;
	return (struct rh_carried){.bytes = state_bytes(&layer->traits) + rh_align_up(tail, RH_ALIGN)};
}

/* ---- emission ---- */

static struct emit_linears one_of(int layer, int proj)
{
	return (struct emit_linears){layer, proj, 1};
}

static struct emit_linears ba_of(int layer)
{
	return (struct emit_linears){layer, IN_B, 2};
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	if (of == HALF_OUTPUT)
		return emit_linear_learns(emit, one_of(layer, OUT_PROJ));
	return emit_linear_learns(emit, (struct emit_linears){layer, IN_QKV, 4});
}

static struct rh_view own_weight(const struct rh_emit *emit, const struct rh_layer *layer, int tensor, int64_t rows, int64_t cols)
{
	return emit_weight(emit, layer, 0, layer->own[RH_MIXER][tensor], rows, cols);
}

static struct rh_view own_gradient(const struct rh_emit *emit, const struct rh_layer *layer, int tensor, int64_t rows, int64_t cols)
{
	return emit_gradient(emit, layer, 0, layer->own[RH_MIXER][tensor], rows, cols);
}

/* A row for each token and value head. */
static struct rh_view by_head(const struct rh_traits *traits, struct rh_view x)
{
	return rh_view_of(x.data, x.dtype, x.rows * traits->delta_heads, x.cols / traits->delta_heads);
}

/* Of what the first linear makes, or of its gradient: what the convolution reads, and z. */
static struct rh_view qkv_of(const struct rh_traits *traits, struct rh_view made)
{
	return rh_view_cols(made, 0, channels_of(traits));
}

static struct rh_view z_of(const struct rh_traits *traits, struct rh_view made)
{
	return rh_view_cols(made, channels_of(traits), values_of(traits));
}

static struct rh_view starts(const struct rh_emit *emit)
{
	return emit_micro(emit, rh_micro_layout(&emit->shape).start_q, emit->shape.documents + 1);
}

/* The rule's state and the convolution's inputs, or both's gradients; absent: there are none. */
struct carried {
	struct rh_view state, tail;
};

static struct carried carried_at(const struct rh_layer *layer, enum rh_dtype dtype, char *base)
{
	const struct rh_traits *traits = &layer->traits;
	struct carried out = {.state = rh_view_of(base, RH_F32, traits->delta_heads * traits->delta_key, traits->delta_value)};
	if (traits->taps > 1)
		out.tail = rh_view_of(base + state_bytes(traits), dtype, traits->taps - 1, channels_of(traits));
	return out;
}

/* Has the run's first document begun before it? */
static int goes_on(const struct rh_emit *emit)
{
	return emit->shape.keys > emit->shape.tokens;
}

/* Those before a chunk, in a backward slot. */
static struct carried before_chunk(const struct rh_emit *emit, int index, int chunk)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	return carried_at(layer, emit->model->dtype, emit->sums + (chunk - 1) * layer->carried.bytes);
}

/* What the run begins with. */
static struct carried begun_with(const struct rh_emit *emit, int index)
{
	if (!goes_on(emit))
		return (struct carried){0};
	return emit->is_backward ? before_chunk(emit, index, emit->shape.chunk)
	                         : carried_at(&emit->model->layer[index], emit->model->dtype, emit_carried(emit, index));
}

/* Where a forward leaves what later runs begin with. */
static struct carried left_by(const struct rh_emit *emit, int index)
{
	if (!emit->shape.keys || emit->is_backward)
		return (struct carried){0};
	return carried_at(&emit->model->layer[index], emit->model->dtype, emit_carried(emit, index));
}

/* The gradients, of what is behind the run before its backward, and then of what is before it. */
static struct carried gradients_of(const struct rh_emit *emit, int index)
{
	if (!emit->shape.keys)
		return (struct carried){0};
	return carried_at(&emit->model->layer[index], RH_F32, emit_carried(emit, index));
}

static void convolve(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view end)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_op op = {.kind = RH_OP_CONV, .conv.documents = emit->shape.documents};
	op.operand[RH_CONV_X] = qkv_of(&layer->traits, view[QKV]);
	op.operand[RH_CONV_W] = own_weight(emit, layer, CONV_W, channels_of(&layer->traits), layer->traits.taps);
	op.operand[RH_CONV_START] = starts(emit);
	op.operand[RH_CONV_Y] = view[CONV];
	op.operand[RH_CONV_TAIL] = begun_with(emit, index).tail;
	op.operand[RH_CONV_END] = end;
	emit_op(emit, &op);
}

/* Operands that forward and backward of the rule share. */
static void set_rule(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_view *view, struct rh_op *op)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t keys = keys_of(traits), heads = traits->delta_heads;
	op->delta.heads = heads;
	op->delta.key_heads = traits->delta_key_heads;
	op->delta.documents = emit->shape.documents;
	op->operand[RH_DELTA_Q] = rh_view_cols(view[CONV], 0, keys);
	op->operand[RH_DELTA_K] = rh_view_cols(view[CONV], keys, keys);
	op->operand[RH_DELTA_V] = rh_view_cols(view[CONV], 2 * keys, values_of(traits));
	op->operand[RH_DELTA_B] = rh_view_cols(view[BA], 0, heads);
	op->operand[RH_DELTA_A] = rh_view_cols(view[BA], heads, heads);
	op->operand[RH_DELTA_A_LOG] = own_weight(emit, layer, A_LOG, 1, heads);
	op->operand[RH_DELTA_DT_BIAS] = own_weight(emit, layer, DT_BIAS, 1, heads);
	op->operand[RH_DELTA_START] = starts(emit);
}

/* Of several documents the first reads what another leaves: in one place they would be in each other's way. By the shape alone, so that
 * memory is that of the largest. */
static int are_apart(const struct rh_emit *emit)
{
	return emit->shape.keys && emit->shape.documents > 1;
}

/* o absent: only the state behind the run. */
static void apply_rule(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view o, struct rh_view end)
{
	struct rh_op op = {.kind = RH_OP_DELTA};
	int64_t mark = emit->arena->used;
	int is_apart = are_apart(emit) && !emit->is_backward;
	set_rule(emit, &emit->model->layer[index], view, &op);
	op.operand[RH_DELTA_O] = o;
	op.operand[RH_DELTA_STATE] = begun_with(emit, index).state;
	op.operand[RH_DELTA_END] = is_apart ? emit_take(emit->arena, RH_F32, end.rows, end.cols) : end;
	emit_op(emit, &op);
	if (is_apart)
		emit_cast(emit, op.operand[RH_DELTA_END], end);
	rh_arena_reset(emit->arena, mark);
}

static void mix(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	struct carried end = left_by(emit, index);
	if (emit_wants(s, RH_ROW_SET(CONV)))
		convolve(emit, index, s->view, end.tail);
	if (emit_wants(s, RH_ROW_SET(OUT)))
		apply_rule(emit, index, s->view, s->view[OUT], end.state);
}

/* For the chunk behind this one, and gradients for the last one's backward. */
static void carry(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	struct carried gradients = gradients_of(emit, index);
	if (emit->shape.chunk + 1 < emit->shape.chunks) {
		struct carried end = before_chunk(emit, index, emit->shape.chunk + 1);
		convolve(emit, index, s->view, end.tail);
		apply_rule(emit, index, s->view, (struct rh_view){0}, end.state);
	}
	if (emit->shape.chunk)
		return;
	emit_fill(emit, gradients.state);
	if (gradients.tail.data)
		emit_fill(emit, gradients.tail);
}

/* The input of Out, in the arena, and the norms' statistics. */
static struct rh_view gate(struct rh_emit *emit, int index, const struct rh_view *view)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct rh_op op = {.kind = RH_OP_GATE, .gate = {RH_GATE_SILU, traits->epsilon}};
	struct rh_view y = emit_act(emit, view[OUT].rows, view[OUT].cols);
	op.operand[RH_GATE_X] = by_head(traits, view[OUT]);
	op.operand[RH_GATE_Z] = by_head(traits, view[Z]);
	op.operand[RH_GATE_W] = own_weight(emit, layer, NORM_W, 1, traits->delta_value);
	op.operand[RH_GATE_Y] = by_head(traits, y);
	op.operand[RH_GATE_RSTD] = by_head(traits, view[RSTD]);
	emit_op(emit, &op);
	return y;
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int64_t tokens = emit->shape.tokens, channels = channels_of(traits), values = values_of(traits), wide = layer->proj[IN_QKV].outputs;
	enum rh_dtype act = emit->model->dtype;
	const struct emit_origin of_x = {RH_MAKER_MIXER, RH_ROW_SET(RH_ROW_X), 0}, of_qkv = {RH_MAKER_MIXER, RH_ROW_SET(QKV), 0};
	const struct emit_origin in_qkv = {RH_MAKER_MIXER, of_x.from | of_qkv.from, 0}; /* a row of_input: x is normed for it, too */
	const struct emit_origin of_conv = {RH_MAKER_MIXER, RH_ROW_SET(CONV) | RH_ROW_SET(BA), 0};
	const struct emit_origin of_out = {RH_MAKER_MIXER, RH_ROW_SET(OUT) | RH_ROW_SET(Z), 0}; /* the op that makes them reads both */
	const struct emit_origin of_backward = {RH_MAKER_BACKWARD, 0, emit->deferred && learns(emit, index, HALF_INPUT)};
	const struct emit_origin of_z_backward = {RH_MAKER_BACKWARD, 0, of_backward.is_deferred && !has_z(layer)};
	const struct emit_origin input_of_out = {RH_MAKER_BACKWARD, 0, emit->deferred && learns(emit, index, HALF_OUTPUT)};
	emit_row(table, QKV, act, tokens, wide, of_x);
	emit_row(table, Z, act, tokens, values, has_z(layer) ? in_qkv : of_x);
	emit_row(table, BA, act, tokens, 2 * traits->delta_heads, of_x);
	emit_row(table, CONV, act, tokens, channels, of_qkv);
	emit_row(table, OUT, act, tokens, values, of_conv);
	emit_row(table, RSTD, RH_F32, tokens, traits->delta_heads, of_out);
	emit_row(table, NORMED, act, tokens, values, input_of_out);
	emit_row(table, D_QKV, act, tokens, wide, of_backward);
	emit_row(table, D_Z, act, tokens, values, of_z_backward);
	emit_row(table, D_BA, act, tokens, 2 * traits->delta_heads, of_backward);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct {
		struct emit_linears linears;
		int row;
	} in[] = {{one_of(index, IN_QKV), QKV}, {one_of(index, IN_Z), Z}, {ba_of(index), BA}};
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t mark = emit->arena->used;
	if (emit_wants(s, RH_ROW_SET(QKV)) || (!has_z(layer) && emit_wants(s, RH_ROW_SET(Z))))
		mark = emit_share_input(emit, x, 0);
	for (int i = 0; i < 3; i++)
		if (layer->proj[in[i].linears.first].outputs && (emit_wants(s, RH_ROW_SET(in[i].row)) || emit_wants_low(s, in[i].linears)))
			emit_linear(emit, in[i].linears, x, (struct rh_view){0}, emit_wanted(s, in[i].row), s);
	emit_unshare_input(emit, mark);
	if (has_z(layer) && emit_wants(s, RH_ROW_SET(Z)))
		emit_cast(emit, z_of(&layer->traits, s->view[QKV]), s->view[Z]);
	mix(emit, index, s);
	int makes = y.data || emit_wants_low(s, one_of(index, OUT_PROJ));
	if (!makes && !emit_wants(s, RH_ROW_SET(RSTD)))
		return NULL;
	struct rh_view normed = gate(emit, index, s->view);
	return makes ? emit_linear_apart(emit, one_of(index, OUT_PROJ), normed, residual, y, s) : NULL;
}

/* d_o, of what the gate made, becomes that of the rule's output. */
static void gate_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct rh_op op = {.kind = RH_OP_GATE_BACKWARD, .gate = {RH_GATE_SILU, traits->epsilon}};
	op.operand[RH_GATE_BACKWARD_X] = by_head(traits, view[OUT]);
	op.operand[RH_GATE_BACKWARD_Z] = by_head(traits, view[Z]);
	op.operand[RH_GATE_BACKWARD_W] = own_weight(emit, layer, NORM_W, 1, traits->delta_value);
	op.operand[RH_GATE_BACKWARD_RSTD] = by_head(traits, view[RSTD]);
	op.operand[RH_GATE_BACKWARD_DY] = op.operand[RH_GATE_BACKWARD_DX] = by_head(traits, d_o);
	op.operand[RH_GATE_BACKWARD_DZ] = by_head(traits, view[D_Z]);
	op.operand[RH_GATE_BACKWARD_DW] = own_gradient(emit, layer, NORM_W, 1, traits->delta_value);
	op.operand[RH_GATE_BACKWARD_Y] = by_head(traits, view[NORMED]);
	emit_op(emit, &op);
}

/* Key heads at once: half of them until the workspace is small, as far as they halve. */
static int64_t heads_at_once(const struct rh_emit *emit, const struct rh_traits *traits)
{
	int64_t heads = traits->delta_key_heads, group = traits->delta_heads / traits->delta_key_heads;
	while (heads % 2 == 0 && rh_delta_space(emit->shape.tokens, emit->shape.documents, heads * group, traits->delta_key,
	                                        traits->delta_value) > MOST_SPACE_BYTES / 4)
		heads /= 2;
	return heads;
}

/* The op's view of some key heads and their value heads: columns, and of states rows. */
static void narrow(struct rh_op *op, int64_t first, int64_t key_heads)
{
	static const int of_keys[] = {RH_DELTA_BACKWARD_Q, RH_DELTA_BACKWARD_K, RH_DELTA_BACKWARD_DQ, RH_DELTA_BACKWARD_DK};
	int64_t all = op->delta.key_heads, group = op->delta.heads / all;
	for (int i = 0; i < RH_DELTA_BACKWARD_SPACE; i++) {
		int is_of_keys = 0;
		for (int k = 0; k < 4; k++)
			is_of_keys |= of_keys[k] == i;
		if (i == RH_DELTA_BACKWARD_START || !op->operand[i].data)
			continue;
		int64_t width = op->operand[i].cols / (is_of_keys ? all : op->delta.heads), times = is_of_keys ? 1 : group;
		op->operand[i] = rh_view_cols(op->operand[i], first * times * width, key_heads * times * width);
	}
	for (int i = RH_DELTA_BACKWARD_STATE; i <= RH_DELTA_BACKWARD_D_STATE; i++) {
		int64_t rows = op->operand[i].rows / all;
		if (op->operand[i].data)
			op->operand[i] = rh_view_rows(op->operand[i], first * rows, key_heads * rows);
	}
	op->delta.key_heads = key_heads;
	op->delta.heads = key_heads * group;
}

/* Elements of workspace: not fewer than for fewer tokens, so that memory is that of the largest micro-batch. */
static int64_t space_of(const struct rh_emit *emit, const struct rh_traits *traits, int64_t at_once)
{
	int64_t heads = at_once * (traits->delta_heads / traits->delta_key_heads);
	int64_t space = rh_delta_space(emit->shape.tokens, emit->shape.documents, heads, traits->delta_key, traits->delta_value);
	return at_once < traits->delta_key_heads ? rh_max(space, MOST_SPACE_BYTES / 4) : space;
}

/* The first document of the chunk has not begun before: the chunk before it gets no gradient of it. */
static void begin_gradient(struct rh_emit *emit, struct rh_view gradient)
{
	if (gradient.data && emit->shape.chunk && !goes_on(emit))
		emit_fill(emit, gradient);
}

/* d_conv (T,C) and the gradients of the gates of d_o. */
static void rule_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o, struct rh_view d_conv)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int64_t mark = emit->arena->used, keys = keys_of(traits), heads = traits->delta_heads, at_once = heads_at_once(emit, traits);
	struct rh_view gradient = gradients_of(emit, index).state, before = gradient;
	struct rh_op op = {.kind = RH_OP_DELTA_BACKWARD};
	if (are_apart(emit))
		before = emit_take(emit->arena, RH_F32, gradient.rows, gradient.cols);
	set_rule(emit, layer, view, &op);
	op.operand[RH_DELTA_BACKWARD_DO] = d_o;
	op.operand[RH_DELTA_BACKWARD_DQ] = rh_view_cols(d_conv, 0, keys);
	op.operand[RH_DELTA_BACKWARD_DK] = rh_view_cols(d_conv, keys, keys);
	op.operand[RH_DELTA_BACKWARD_DV] = rh_view_cols(d_conv, 2 * keys, values_of(traits));
	op.operand[RH_DELTA_BACKWARD_DB] = rh_view_cols(view[D_BA], 0, heads);
	op.operand[RH_DELTA_BACKWARD_DA] = rh_view_cols(view[D_BA], heads, heads);
	op.operand[RH_DELTA_BACKWARD_DA_LOG] = own_gradient(emit, layer, A_LOG, 1, heads);
	op.operand[RH_DELTA_BACKWARD_DDT_BIAS] = own_gradient(emit, layer, DT_BIAS, 1, heads);
	op.operand[RH_DELTA_BACKWARD_SPACE] = emit_take(emit->arena, RH_F32, 1, space_of(emit, traits, at_once));
	op.operand[RH_DELTA_BACKWARD_STATE] = begun_with(emit, index).state;
	op.operand[RH_DELTA_BACKWARD_D_END] = gradient;
	if (goes_on(emit))
		op.operand[RH_DELTA_BACKWARD_D_STATE] = before;
	for (int64_t first = 0; first < traits->delta_key_heads; first += at_once) {
		struct rh_op part = op;
		narrow(&part, first, at_once);
		emit_op(emit, &part);
	}
	if (goes_on(emit) && before.data != gradient.data)
		emit_cast(emit, before, gradient);
	begin_gradient(emit, gradient);
	rh_arena_reset(emit->arena, mark);
}

static void conv_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_conv)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t channels = channels_of(&layer->traits), taps = layer->traits.taps;
	struct rh_view gradient = gradients_of(emit, index).tail;
	struct rh_op op = {.kind = RH_OP_CONV_BACKWARD, .conv.documents = emit->shape.documents};
	op.operand[RH_CONV_BACKWARD_X] = qkv_of(&layer->traits, view[QKV]);
	op.operand[RH_CONV_BACKWARD_W] = own_weight(emit, layer, CONV_W, channels, taps);
	op.operand[RH_CONV_BACKWARD_START] = starts(emit);
	op.operand[RH_CONV_BACKWARD_DY] = d_conv;
	op.operand[RH_CONV_BACKWARD_DX] = qkv_of(&layer->traits, view[D_QKV]);
	op.operand[RH_CONV_BACKWARD_DW] = own_gradient(emit, layer, CONV_W, channels, taps);
	op.operand[RH_CONV_BACKWARD_TAIL] = begun_with(emit, index).tail;
	op.operand[RH_CONV_BACKWARD_D_END] = gradient;
	if (goes_on(emit))
		op.operand[RH_CONV_BACKWARD_D_TAIL] = gradient;
	emit_op(emit, &op);
	begin_gradient(emit, gradient);
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	for (int row = D_QKV; row <= D_BA; row++)
		(void)emit_operand(emit, s, row);
	int64_t mark = emit->arena->used;
	struct rh_view d_o = emit_act(emit, s->view[OUT].rows, s->view[OUT].cols), normed = emit_operand(emit, s, NORMED);
	emit_linear_dx(emit, one_of(index, OUT_PROJ), dy, d_o, s);
	gate_backward(emit, index, s->view, d_o);
	emit_linear_gradients(emit, one_of(index, OUT_PROJ), dy, normed, s);
	if (has_z(layer))
		emit_cast(emit, s->view[D_Z], z_of(&layer->traits, s->view[D_QKV]));
	struct rh_view d_conv = emit_act(emit, s->view[CONV].rows, s->view[CONV].cols);
	rule_backward(emit, index, s->view, d_o, d_conv);
	conv_backward(emit, index, s->view, d_conv);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, one_of(index, IN_QKV), s->view[D_QKV], dx, s);
	if (!has_z(layer))
		emit_linear_more_dx(emit, one_of(index, IN_Z), s->view[D_Z], dx, s);
	emit_linear_more_dx(emit, ba_of(index), s->view[D_BA], dx, s);
}

static void input_gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	int64_t mark = emit->arena->used;
	if (emit->model->block[emit->model->layer[index].block[0]].trainable)
		mark = emit_share_input(emit, x, 1);
	emit_linear_dw(emit, one_of(index, IN_QKV), s->view[D_QKV], x, s);
	if (!has_z(&emit->model->layer[index]))
		emit_linear_dw(emit, one_of(index, IN_Z), s->view[D_Z], x, s);
	emit_linear_dw(emit, ba_of(index), s->view[D_BA], x, s);
	emit_unshare_input(emit, mark);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!emit->deferred)
		input_gradients(emit, index, s, x);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	emit_linear_dw(emit, one_of(index, OUT_PROJ), s->view[RH_ROW_GRADIENT + RH_MIXER], s->view[NORMED], s);
	input_gradients(emit, index, s, s->view[RH_ROW_INPUT + RH_MIXER]);
}

const struct rh_half half_delta = {.size = size,
                                   .place = place,
                                   .carries = carries,
                                   .to_carry = RH_ROW_SET(QKV) | RH_ROW_SET(BA) | RH_ROW_SET(RH_ROW_LOW + IN_QKV) |
                                               RH_ROW_RUN(RH_ROW_LOW + IN_B, 2),
                                   .carry = carry,
                                   .of_input = RH_ROW_RUN(QKV, 3) | RH_ROW_RUN(RH_ROW_LOW + IN_QKV, 4),
                                   .of_output = RH_ROW_SET(OUT) | RH_ROW_SET(Z),
                                   .declare = declare,
                                   .learns = learns,
                                   .forward = forward,
                                   .backward = backward,
                                   .gradients = gradients,
                                   .weights = weights};
