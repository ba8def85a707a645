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
	enum rh_form form = tensor->form;
	return t > 0 && tensor->joins && form == tensor[-1].form && (!form || form == RH_FORM_FP8_JOINT || !rh_form_traits(form)->run);
}

/* Of tensors with a joint scale it lies behind the last. */
static int64_t bytes_of(const struct rh_block *block, int t, enum rh_dtype plain)
{
	const struct rh_tensor *tensor = &block->tensor[t];
	int64_t rows = tensor->rows, cols = tensor->cols;
	if (tensor->form == RH_FORM_FP8_JOINT && t + 1 < block->tensors && is_continued(block, t + 1))
		return rh_form_element_bytes(tensor->form, rows, cols);
	return tensor->form ? rh_form_bytes(tensor->form, rows, cols) : rh_dtype_bytes(plain, rows * cols);
}

/* Of tensors that are one matrix some may be packed and others not: then all of them have a place among the plain matrices. One that feeds
 * has its transpose there, of half as many bytes as bf16's, where there are backwards. */
static void lay_out_plain(struct rh_block *block, int trains)
{
	for (int t = 0, count; t < block->tensors; t += count) {
		int is_packed = 0, feeds = block->tensor[t].feeds;
		count = block_matrix_tensors(block, t);
		for (int i = t; i < t + count; i++)
			is_packed |= block->tensor[i].form != RH_FORM_PLAIN;
		block->plain_elements = rh_align_up(block->plain_elements, MODEL_GAP);
		for (int i = t; i < t + count; i++) {
			struct rh_tensor *tensor = &block->tensor[i];
			tensor->plain = is_packed && (!feeds || trains) ? block->plain_elements : -1;
			block->plain_elements += tensor->plain < 0 ? 0 : tensor->rows * tensor->cols / (feeds ? 2 : 1);
		}
	}
}

static void lay_out_packed(struct rh_block *block, enum rh_dtype plain)
{
	int64_t at = 0;
	for (int t = 0; t < block->tensors; t++) {
		struct rh_tensor *tensor = &block->tensor[t];
		tensor->stored = is_continued(block, t) ? at : rh_align_up(at, RH_ALIGN);
		at = tensor->stored + bytes_of(block, t, plain);
	}
	block->packed_bytes = rh_align_up(at, RH_ALIGN);
}

struct forms {
	enum rh_form (*of)(const void *context, const struct rh_tensor *tensor);
	const void *context;
};

/* Of the `count` tensors of one matrix; how many may feed its product as they are stored. */
static int choose_forms(const struct forms *forms, struct rh_tensor *tensor, int count, int may_pack)
{
	int feed = 0;
	for (int i = 0; i < count; i++) {
		enum rh_form form = may_pack && tensor[i].may_pack ? forms->of(forms->context, &tensor[i]) : RH_FORM_PLAIN;
		RH_ASSERT(!form || tensor[i].cols % rh_dtype_block(rh_form_traits(form)->element) == 0);
		RH_ASSERT(form != RH_FORM_FP8_JOINT || tensor[i].may_feed);
		tensor[i].form = form;
		feed += form == RH_FORM_FP8_JOINT || (form == RH_FORM_FP8 && count == 1 && tensor[i].may_feed);
	}
	return feed;
}

static int pack_block(const struct forms *forms, struct rh_block *block)
{
	int any = 0;
	for (int t = 0, count; t < block->tensors; t += count) {
		struct rh_tensor *tensor = &block->tensor[t];
		count = block_matrix_tensors(block, t);
		int feed = choose_forms(forms, tensor, count, !block->trainable);
		if (feed && feed < count) {
			for (int i = 0; i < count; i++)
				tensor[i].may_feed = 0;
			feed = choose_forms(forms, tensor, count, !block->trainable);
		}
		for (int i = 0; i < count; i++) {
			tensor[i].feeds = feed > 0;
			any |= tensor[i].form != RH_FORM_PLAIN;
		}
	}
	return any;
}

void rh_model_pack(struct rh_model *model, enum rh_form (*form)(const void *context, const struct rh_tensor *tensor), const void *context)
{
	int trains = 0;
	model_mark_eight(model);
	for (int b = 0; b < model->blocks; b++)
		trains |= model->block[b].trainable;
	for (int b = 0; b < model->blocks; b++) {
		struct rh_block *block = &model->block[b];
		block->packed_bytes = block->plain_elements = 0;
		if (!pack_block(&(struct forms){form, context}, block))
			continue;
		lay_out_plain(block, trains);
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
	form.bytes = bytes_of(block, tensor, plain);
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
	int end = emit->launch ? t + block_matrix_tensors(block, t) : t; /* measuring: nothing is launched */
	for (int next; t < end; t = next) {
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

static int64_t rows_of_matrix(const struct rh_block *block, int t)
{
	int64_t rows = 0;
	for (int i = t; i < t + block_matrix_tensors(block, t); i++)
		rows += block->tensor[i].rows;
	return rows;
}

/* Of a matrix that feeds, which begins with tensor t: its transpose. */
static void transpose(struct rh_emit *emit, const struct rh_block *block, int t, char *from, char *to)
{
	int64_t rows = rows_of_matrix(block, t), cols = block->tensor[t].cols;
	struct rh_op op = {.kind = RH_OP_TRANSPOSE};
	op.operand[RH_TRANSPOSE_X] = rh_view_of(from + block->tensor[t].stored, RH_E4M3, rows, cols);
	op.operand[RH_TRANSPOSE_Y] = rh_view_of(to, RH_E4M3, cols, rows);
	emit_op(emit, &op);
}

int rh_block_make_plain(struct rh_emit *emit, int b, char *from, char *to)
{
	const struct rh_block *block = &emit->model->block[b];
	for (int t = 0; block->packed_bytes && t < block->tensors; t += block_matrix_tensors(block, t)) {
		const struct rh_tensor *tensor = &block->tensor[t];
		if (tensor->plain >= 0)
			(tensor->feeds ? transpose : make_plain)(emit, block, t, from,
			                                         to + rh_dtype_bytes(emit->model->dtype, tensor->plain));
	}
	emit_scale_block(emit, block, from, to);
	return emit->rc;
}

int emit_eight_bits(struct rh_emit *emit, const struct rh_layer *layer, int tensor, int across, int64_t rows, int64_t cols,
                    struct rh_scaled *out)
{
	int b = layer->block[0];
	const struct rh_block *block = &emit->model->block[b];
	const struct rh_tensor *of = &block->tensor[tensor];
	if (!block->packed_bytes || !of->feeds || of->joins || rows != rows_of_matrix(block, tensor))
		return 0;
	char *any = (char *)(uintptr_t)RH_ALIGN, *from = emit->launch ? emit->weights[b] : any; /* measuring: any address */
	*out = (struct rh_scaled){.scale = rh_view_of(from + of->stored + rh_form_scales_at(of->form, rows, cols), RH_F32, 1, 1)};
	if (!across) {
		out->straight = rh_view_of(from + of->stored, RH_E4M3, rows, cols);
	} else if (emit->plain && of->plain >= 0) {
		char *to = (emit->launch ? emit->plain[b] : any) + rh_dtype_bytes(emit->model->dtype, of->plain);
		out->across = rh_view_of(to, RH_E4M3, cols, rows);
	} else {
		out->across = emit_take(emit->arena, RH_E4M3, cols, rows);
		transpose(emit, block, tensor, from, out->across.data);
	}
	return 1;
}

struct rh_view emit_matrix(struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols)
{
	int b = layer->block[which];
	const struct rh_block *block = &emit->model->block[b];
	int feeds = block->tensor[tensor].feeds; /* where its product is not in 8 bits after all */
	if (!block->packed_bytes || (!feeds && block->tensor[tensor].plain < 0))
		return emit_weight(emit, layer, which, tensor, rows, cols);
	enum rh_dtype act = emit->model->dtype;
	char *any = (char *)(uintptr_t)RH_ALIGN; /* measuring: any address */
	if (emit->plain && !feeds)
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
