/* Products of linears by tensor cores' faster ways: fp16 sums, or 8-bit operands. Each operand gets a scale of its own, from its largest
 * magnitude in this micro-batch: nothing is carried from one step to the next, so that cuts, rounds and devices change nothing. */
#include "model/emit_internal.h"
#include "model/model_internal.h"

#include "core/float8.h"

static int64_t unit_of(enum rh_multiply multiply)
{
	return multiply == RH_MULTIPLY_F8 ? 16 : 8;
}

/* In every one of a linear's products its in and out are the columns of a and of d. */
static int fits(const struct emit_product *p, enum rh_multiply multiply)
{
	int64_t unit = unit_of(multiply);
	if (multiply == RH_MULTIPLY_BF16 || p->a.dtype != RH_BF16 || p->a.cols % unit || p->d.cols % unit)
		return 0;
	return rh_view_on_16(p->a) && rh_view_on_16(p->b) && rh_view_on_16(p->c) && rh_view_on_16(p->d);
}

/* The views of an operand's two 8-bit forms. */
static struct rh_view straight_at(void *at, struct rh_view x, enum rh_dtype dtype)
{
	return rh_view_of(at, dtype, x.rows, x.cols);
}

static int64_t whole_runs(int64_t rows)
{
	return (rows + RH_QUANTISE_RUN - 1) / RH_QUANTISE_RUN * RH_QUANTISE_RUN;
}

static struct rh_view across_at(void *at, struct rh_view x, enum rh_dtype dtype)
{
	return rh_view_of(at, dtype, x.cols, whole_runs(x.rows));
}

static struct rh_view take_straight(struct rh_emit *emit, struct rh_view x, enum rh_dtype dtype)
{
	return straight_at(rh_arena_take(emit->arena, x.rows * x.cols), x, dtype);
}

static struct rh_view take_across(struct rh_emit *emit, struct rh_view x, enum rh_dtype dtype)
{
	return across_at(rh_arena_take(emit->arena, x.cols * whole_runs(x.rows)), x, dtype);
}

/* Makes what has an address in `to`. */
static void quantise(struct rh_emit *emit, struct rh_view x, struct rh_view part, const struct rh_scaled *to)
{
	struct rh_view made = to->straight.data ? to->straight : to->across;
	float half = rh_half_limit(emit->model->chunk), eight = made.dtype == RH_E5M2 ? RH_E5M2_LARGEST : RH_E4M3_LARGEST;
	struct rh_op op = {.kind = RH_OP_QUANTISE, .quantise.limit = made.data ? eight : half};
	op.operand[RH_QUANTISE_X] = x;
	op.operand[RH_QUANTISE_PART] = part;
	op.operand[RH_QUANTISE_SCALE] = to->scale;
	op.operand[RH_QUANTISE_Y] = to->straight;
	op.operand[RH_QUANTISE_T] = to->across;
	const struct rh_amax *known = emit_amax_of(emit, x);
	if (known) {
		op.operand[RH_QUANTISE_AMAX] = known->at;
		op.quantise.known = known->known;
	}
	emit_op(emit, &op);
}

static void quantise_in_arena(struct rh_emit *emit, struct rh_view x, const struct rh_scaled *to)
{
	int64_t mark = emit->arena->used;
	quantise(emit, x, emit_take(emit->arena, RH_F32, 1, RH_QUANTISE_PARTS), to);
	rh_arena_reset(emit->arena, mark);
}

/* An operand of the product: with 8 bits its rows lie along k, transposed where those of x lie across it. */
static struct rh_scaled operand(struct rh_emit *emit, struct rh_view x, enum rh_dtype dtype, int across, const struct rh_scaled *there)
{
	struct rh_scaled to = {0};
	int is_eight = emit->model->multiply == RH_MULTIPLY_F8;
	if (rh_view_is(emit->scaled_x.of, x) && emit->scaled_x.made.scale.data)
		there = &emit->scaled_x.made;
	if (there->scale.data && (!is_eight || (across ? there->across.data : there->straight.data)))
		return *there;
	if (is_eight && across)
		to.across = take_across(emit, x, dtype);
	else if (is_eight)
		to.straight = take_straight(emit, x, dtype);
	to.scale = emit_take(emit->arena, RH_F32, 1, 1);
	quantise_in_arena(emit, x, &to);
	return to;
}

int64_t emit_share_input(struct rh_emit *emit, struct rh_view x, int across)
{
	const struct rh_scaled none = {0};
	int64_t mark = emit->arena->used;
	if (fits(&(struct emit_product){.a = x, .d = x}, emit->model->multiply)) {
		emit->scaled_x.made = operand(emit, x, RH_E4M3, across, &none);
		emit->scaled_x.of = x;
	}
	return mark;
}

void emit_unshare_input(struct rh_emit *emit, int64_t mark)
{
	emit->scaled_x.of.data = NULL;
	rh_arena_reset(emit->arena, mark);
}

static void emit_scaled_product(struct rh_emit *emit, const struct emit_product *p)
{
	const struct rh_model *model = emit->model;
	struct rh_op op = {.kind = RH_OP_SCALED_GEMM};
	int64_t mark = emit->arena->used;
	struct rh_scaled a = operand(emit, p->a, p->trans_b ? RH_E4M3 : RH_E5M2, p->trans_a, &p->of_a);
	struct rh_scaled b = operand(emit, p->b, RH_E4M3, !p->trans_b, &p->of_b);
	op.scaled_gemm.alpha = p->alpha == 0 ? 1 : p->alpha;
	if (model->multiply == RH_MULTIPLY_F8) {
		op.operand[RH_SCALED_GEMM_A] = p->trans_a ? a.across : a.straight;
		op.operand[RH_SCALED_GEMM_B] = p->trans_b ? b.straight : b.across;
		op.scaled_gemm.trans_b = 1;
	} else {
		op.operand[RH_SCALED_GEMM_A] = p->a;
		op.operand[RH_SCALED_GEMM_B] = p->b;
		op.scaled_gemm.trans_a = p->trans_a;
		op.scaled_gemm.trans_b = p->trans_b;
		op.scaled_gemm.chunk = model->chunk;
	}
	op.operand[RH_SCALED_GEMM_SCALE_A] = a.scale;
	op.operand[RH_SCALED_GEMM_SCALE_B] = b.scale;
	op.operand[RH_SCALED_GEMM_C] = p->c;
	op.operand[RH_SCALED_GEMM_BIAS] = p->bias;
	op.operand[RH_SCALED_GEMM_D] = p->d;
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

void emit_linear_product(struct rh_emit *emit, const struct emit_product *p)
{
	if (fits(p, emit->model->multiply))
		emit_scaled_product(emit, p);
	else
		emit_gemm(emit, p);
}

/* dy's columns are the linear's out, dx's its in: as fits() asks of both products. */
struct rh_scaled emit_scaled_gradient(struct rh_emit *emit, struct rh_view dy, struct rh_view dx, int64_t *mark)
{
	enum rh_multiply multiply = emit->model->multiply;
	struct rh_scaled made = {0};
	*mark = emit->arena->used;
	if (!fits(&(struct emit_product){.a = dy, .d = dx}, multiply))
		return made;
	if (multiply == RH_MULTIPLY_F8)
		made.across = take_across(emit, dy, RH_E5M2);
	made.scale = emit_take(emit->arena, RH_F32, 1, 1);
	*mark = emit->arena->used;
	if (multiply == RH_MULTIPLY_F8)
		made.straight = take_straight(emit, dy, RH_E5M2);
	quantise_in_arena(emit, dy, &made);
	return made;
}

/* ---- weights, once a slot ---- */

/* What is made of a matrix, from `at` on, in E4M3. Returns its bytes. */
static int64_t scaled_at(enum rh_multiply multiply, char *at, struct rh_view matrix, struct rh_scaled *out)
{
	int64_t straight = rh_align_up(matrix.rows * matrix.cols, RH_ALIGN),
	        across = rh_align_up(matrix.cols * whole_runs(matrix.rows), RH_ALIGN);
	*out = (struct rh_scaled){0};
	if (multiply != RH_MULTIPLY_F8)
		straight = across = 0;
	out->scale = rh_view_of(at, RH_F32, 1, 1);
	at += RH_ALIGN;
	if (straight) {
		out->straight = straight_at(at, matrix, RH_E4M3);
		out->across = across_at(at + straight, matrix, RH_E4M3);
	}
	return RH_ALIGN + straight + across;
}

/* The matrix that begins with tensor t, without an address. */
static struct rh_view shape_of(const struct rh_block *block, int t)
{
	int64_t rows = 0;
	for (int i = t; i < t + block_matrix_tensors(block, t); i++)
		rows += block->tensor[i].rows;
	return rh_view_of(NULL, RH_BF16, rows, block->tensor[t].cols);
}

/* What a block's layers make lies behind its plain matrices: first what maxima are made in. */
static void place_scaled(struct rh_model *model, const struct rh_layer *layer, struct rh_block *block)
{
	int64_t unit = unit_of(model->multiply), plain = rh_block_plain_bytes(block, model->dtype), at = RH_QUANTISE_PARTS * 4;
	for (int p = 0; p < RH_PROJS; p++) {
		int t = layer->proj[p].joins || layer->proj[p].is_exact || !layer->proj[p].outputs ? -1 : layer->proj[p].weight;
		struct rh_scaled none;
		struct rh_view matrix = t < 0 ? (struct rh_view){0} : shape_of(block, t);
		if (t < 0 || block->tensor[t].feeds || matrix.rows % unit || matrix.cols % unit)
			continue;
		block->tensor[t].scaled = plain + at;
		at += scaled_at(model->multiply, (char *)(uintptr_t)RH_ALIGN, matrix, &none);
	}
	block->scaled_bytes = at > RH_QUANTISE_PARTS * 4 ? at : 0;
}

void rh_model_scale(struct rh_model *model)
{
	for (int l = 0; l < model->layers && model->multiply != RH_MULTIPLY_BF16; l++)
		if (model->layer[l].kind == RH_LAYER_BLOCK && !model->block[model->layer[l].block[0]].scaled_bytes)
			place_scaled(model, &model->layer[l], &model->block[model->layer[l].block[0]]);
}

struct rh_scaled emit_scaled_matrix(const struct rh_emit *emit, const struct rh_layer *layer, int tensor)
{
	int b = layer->block[0];
	const struct rh_block *block = &emit->model->block[b];
	char *any = (char *)(uintptr_t)RH_ALIGN; /* measuring: any address */
	struct rh_scaled made = {0};
	if (emit->plain && block->tensor[tensor].scaled)
		(void)scaled_at(emit->model->multiply, (emit->launch ? emit->plain[b] : any) + block->tensor[tensor].scaled,
		                shape_of(block, tensor), &made);
	return made;
}

void emit_scale_block(struct rh_emit *emit, const struct rh_block *block, char *from, char *to)
{
	enum rh_dtype act = emit->model->dtype;
	int64_t parts = rh_block_plain_bytes(block, act) - block->scaled_bytes;
	for (int t = 0; t < block->tensors; t++) {
		const struct rh_tensor *tensor = &block->tensor[t];
		struct rh_scaled made;
		if (!tensor->scaled)
			continue;
		struct rh_view matrix = shape_of(block, t);
		int is_made = block->packed_bytes && tensor->plain >= 0;
		matrix.data = is_made ? to + rh_dtype_bytes(act, tensor->plain) : from + rh_block_tensor(block, t, act).offset;
		(void)scaled_at(emit->model->multiply, to + tensor->scaled, matrix, &made);
		quantise(emit, matrix, rh_view_of(to + parts, RH_F32, 1, RH_QUANTISE_PARTS), &made);
	}
}

void emit_base_product(struct rh_emit *emit, const struct rh_layer *layer, int tensor, int64_t out, int64_t in, struct emit_product p)
{
	int64_t mark = emit->arena->used;
	if (fits(&p, emit->model->multiply) && emit_eight_bits(emit, layer, tensor, !p.trans_b, out, in, &p.of_b)) {
		emit_scaled_product(emit, &p);
	} else {
		p.of_b = emit_scaled_matrix(emit, layer, tensor);
		p.b = emit_matrix(emit, layer, 0, tensor, out, in);
		emit_linear_product(emit, &p);
	}
	rh_arena_reset(emit->arena, mark);
}

/* Marks those of a layer's matrices whose products take 8-bit operands. */
static void mark_layer(struct rh_layer *layer, struct rh_block *block)
{
	int64_t unit = unit_of(RH_MULTIPLY_F8);
	for (int p = 0, joint = 1; p < RH_PROJS; p += joint) {
		const struct rh_linear *first = &layer->proj[p];
		int64_t out = first->outputs;
		for (joint = 1; p + joint < RH_PROJS && first[joint].joins; joint++)
			out += first[joint].outputs;
		for (int i = 0; i < joint; i++)
			if (first[i].weight >= 0)
				block->tensor[first[i].weight].may_feed = !first->is_exact && first->inputs % unit == 0 && out % unit == 0;
	}
}

void model_mark_eight(struct rh_model *model)
{
	for (int l = 0; model->multiply == RH_MULTIPLY_F8 && l < model->layers; l++)
		if (model->layer[l].kind == RH_LAYER_BLOCK && model->layer[l].block[0] >= 0)
			mark_layer(&model->layer[l], &model->block[model->layer[l].block[0]]);
}

/* How many of a block's projections have a length that is no multiple of `unit`. */
static int64_t unfit_of(const struct rh_linear *proj, int64_t unit)
{
	int64_t count = 0;
	for (int p = 0, joint = 1; p < RH_PROJS; p += joint) {
		int64_t out = proj[p].outputs;
		for (joint = 1; p + joint < RH_PROJS && proj[p + joint].joins; joint++)
			out += proj[p + joint].outputs;
		if (proj[p].weight >= 0 && !proj[p].is_exact)
			count += proj[p].inputs % unit || out % unit ? joint : 0;
	}
	return count;
}

int64_t rh_model_unfit(const struct rh_model *model)
{
	int64_t count = 0, unit = unit_of(model->multiply);
	for (int l = 0; model->multiply != RH_MULTIPLY_BF16 && l < model->layers; l++) {
		switch (model->layer[l].kind) {
		case RH_LAYER_BLOCK:
			count += unfit_of(model->layer[l].proj, unit);
			break;
		case RH_LAYER_EMBEDDING:
		case RH_LAYER_HEAD:
			break; /* never narrow */
		}
	}
	return count;
}
