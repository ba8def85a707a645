/* Packed tensors: where a block's bytes lie as devices read them, and how its plain matrices are made on the device. */
#include "model/emit_internal.h"
#include "model/model_internal.h"

int block_matrix_tensors(const struct rh_block *block, int first)
{
	int count = 1;
	while (first + count < block->tensors && block->tensor[first + count].joins)
		count++;
	return count;
}

/* Do the bytes of tensor t follow those of t - 1? They are read as one matrix, but scales that lie apart would lie between. */
static int is_continued(const struct rh_block *block, int t)
{
	const struct rh_tensor *tensor = &block->tensor[t];
	return t > 0 && tensor->joins && tensor->form == tensor[-1].form && (!tensor->form || !rh_form_traits(tensor->form)->run);
}

static int64_t bytes_of(const struct rh_tensor *tensor, enum rh_dtype plain)
{
	int64_t rows = tensor->rows, cols = tensor->cols;
	return tensor->form ? rh_form_bytes(tensor->form, rows, cols) : rh_dtype_bytes(plain, rows * cols);
}

/* Of tensors that are one matrix some may be packed and others not: then all of them have a place among the plain matrices. */
static void lay_out_plain(struct rh_block *block)
{
	for (int t = 0, count; t < block->tensors; t += count) {
		int is_packed = 0;
		count = block_matrix_tensors(block, t);
		for (int i = t; i < t + count; i++)
			is_packed |= block->tensor[i].form != RH_FORM_PLAIN;
		block->plain_elements = rh_align_up(block->plain_elements, MODEL_GAP);
		for (int i = t; i < t + count; i++) {
			struct rh_tensor *tensor = &block->tensor[i];
			tensor->plain = is_packed ? block->plain_elements : -1;
			block->plain_elements += is_packed ? tensor->rows * tensor->cols : 0;
		}
	}
}

static void lay_out_packed(struct rh_block *block, enum rh_dtype plain)
{
	int64_t at = 0;
	for (int t = 0; t < block->tensors; t++) {
		struct rh_tensor *tensor = &block->tensor[t];
		tensor->stored = is_continued(block, t) ? at : rh_align_up(at, RH_ALIGN);
		at = tensor->stored + bytes_of(tensor, plain);
	}
	block->packed_bytes = rh_align_up(at, RH_ALIGN);
}

void rh_model_pack(struct rh_model *model, enum rh_form (*form)(const void *context, const struct rh_tensor *tensor), const void *context)
{
	for (int b = 0; b < model->blocks; b++) {
		struct rh_block *block = &model->block[b];
		int any = 0;
		for (int t = 0; t < block->tensors; t++) {
			struct rh_tensor *tensor = &block->tensor[t];
			tensor->form = tensor->may_pack && !block->trainable ? form(context, tensor) : RH_FORM_PLAIN;
			RH_ASSERT(!tensor->form || tensor->cols % rh_dtype_block(rh_form_traits(tensor->form)->element) == 0);
			any |= tensor->form != RH_FORM_PLAIN;
		}
		block->packed_bytes = block->plain_elements = 0;
		if (!any)
			continue;
		lay_out_plain(block);
		lay_out_packed(block, model->dtype);
	}
}

int rh_model_is_packed(const struct rh_model *model)
{
	int any = 0;
	for (int b = 0; b < model->blocks; b++)
		any |= model->block[b].packed_bytes > 0;
	return any;
}

int rh_model_makes_plain(const struct rh_model *model)
{
	int any = 0;
	for (int b = 0; b < model->blocks; b++)
		any |= model->block[b].packed_bytes > 0 || (model->multiply == RH_MULTIPLY_F8 && model->block[b].scaled_bytes);
	return any;
}

int rh_model_plain_block(const struct rh_model *model, int layer, int which)
{
	int b = model->layer[layer].block[which];
	return b >= 0 && model->layer[layer].kind != RH_LAYER_EMBEDDING && rh_block_plain_bytes(&model->block[b], model->dtype) ? b : -1;
}

int64_t rh_block_bytes(const struct rh_block *block, enum rh_dtype plain)
{
	return block->packed_bytes ? block->packed_bytes : rh_dtype_bytes(plain, block->elements);
}

int64_t rh_block_plain_bytes(const struct rh_block *block, enum rh_dtype plain)
{
	return rh_align_up(rh_dtype_bytes(plain, block->plain_elements), RH_ALIGN) + block->scaled_bytes;
}

struct rh_tensor_form rh_block_tensor(const struct rh_block *block, int tensor, enum rh_dtype plain)
{
	const struct rh_tensor *of = &block->tensor[tensor];
	struct rh_tensor_form form = {of->form, plain, block->packed_bytes ? of->stored : rh_dtype_bytes(plain, of->offset), 0};
	form.dtype = of->form ? rh_form_traits(of->form)->element : plain;
	form.bytes = bytes_of(of, plain);
	return form;
}

/* ---- on the device ---- */

/* y = what the packed matrix (rows, y.cols) stands for, or those of its rows that `index` names; its bytes begin at `from`. */
static void dequantise(struct rh_emit *emit, enum rh_form form, char *from, int64_t rows, struct rh_view index, struct rh_view y)
{
	const struct rh_form_traits *traits = rh_form_traits(form);
	struct rh_op op = {.kind = RH_OP_DEQUANTISE, .dequantise = {traits->run, traits->run ? traits->tall : 0, RH_INT8_UNIT}};
	op.operand[RH_DEQUANTISE_X] = rh_view_of(from, traits->element, rows, y.cols);
	int64_t runs = rh_form_runs(form, y.cols), scale_rows = rh_form_scale_rows(form, rows);
	if (traits->run)
		op.operand[RH_DEQUANTISE_SCALE] = rh_view_of(from + rh_form_scales_at(form, rows, y.cols), traits->scale, scale_rows, runs);
	char *tail = traits->tail == RH_TAIL_NONE ? NULL : from + rh_form_tail_at(form, rows, y.cols);
	if (traits->tail == RH_TAIL_FACTORS)
		op.operand[RH_DEQUANTISE_NESTED] = rh_view_of(tail, RH_F32, 1, RH_FACTORS);
	if (traits->tail == RH_TAIL_NESTED) {
		int64_t factors = (scale_rows * runs + RH_NESTED_RUN - 1) / RH_NESTED_RUN;
		op.operand[RH_DEQUANTISE_NESTED] = rh_view_of(tail, RH_F32, 1, factors);
		op.operand[RH_DEQUANTISE_MAP] = rh_view_of(tail + 4 * factors, RH_F32, 1, RH_NESTED_MAP);
	}
	op.operand[RH_DEQUANTISE_INDEX] = index;
	op.operand[RH_DEQUANTISE_Y] = y;
	emit_op(emit, &op);
}

/* Makes the matrix plain that begins with tensor t of a block whose bytes begin at `from`. Tensors of one form make one op. */
static void make_plain(struct rh_emit *emit, const struct rh_block *block, int t, char *from, char *to)
{
	enum rh_dtype act = emit->model->dtype;
	for (int end = t + block_matrix_tensors(block, t), next; t < end; t = next) {
		struct rh_tensor_form form = rh_block_tensor(block, t, act);
		int64_t rows = block->tensor[t].rows, cols = block->tensor[t].cols;
		for (next = t + 1; next < end && is_continued(block, next); next++)
			rows += block->tensor[next].rows;
		struct rh_view y = rh_view_of(to, act, rows, cols);
		if (form.form)
			dequantise(emit, form.form, from + form.offset, rows, (struct rh_view){0}, y);
		else
			emit_cast(emit, rh_view_of(from + form.offset, act, rows, cols), y);
		to += rh_view_bytes(y);
	}
}

int rh_block_make_plain(struct rh_emit *emit, int b, char *from, char *to)
{
	const struct rh_block *block = &emit->model->block[b];
	for (int t = 0; block->packed_bytes && t < block->tensors; t += block_matrix_tensors(block, t))
		if (block->tensor[t].plain >= 0)
			make_plain(emit, block, t, from, to + rh_dtype_bytes(emit->model->dtype, block->tensor[t].plain));
	emit_scale_block(emit, block, from, to);
	return emit->rc;
}

struct rh_view emit_matrix(struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols)
{
	int b = layer->block[which];
	const struct rh_block *block = &emit->model->block[b];
	if (!block->packed_bytes || block->tensor[tensor].plain < 0)
		return emit_weight(emit, layer, which, tensor, rows, cols);
	enum rh_dtype act = emit->model->dtype;
	char *any = (char *)(uintptr_t)RH_ALIGN; /* measuring: any address */
	if (emit->plain)
		return rh_view_of((emit->launch ? emit->plain[b] : any) + rh_dtype_bytes(act, block->tensor[tensor].plain), act, rows,
		                  cols);
	struct rh_view y = emit_act(emit, rows, cols);
	make_plain(emit, block, tensor, emit->launch ? emit->weights[b] : any, y.data);
	return y;
}

int emit_packed_rows(struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, struct rh_view index, struct rh_view y)
{
	int b = layer->block[which];
	const struct rh_block *block = &emit->model->block[b];
	struct rh_tensor_form form = rh_block_tensor(block, tensor, emit->model->dtype);
	if (!form.form)
		return 0;
	char *from = emit->launch ? emit->weights[b] : (char *)(uintptr_t)RH_ALIGN;
	dequantise(emit, form.form, from + form.offset, block->tensor[tensor].rows, index, y);
	return 1;
}
