#include "model/micro.h"

#include "core/float16.h"
#include "core/preference.h"
#include "model/emit.h"

#include <string.h>

/* Where `elements` of 4 bytes go, after what lies there already. */
static int64_t append(struct rh_micro_layout *at, int64_t elements)
{
	int64_t offset = at->bytes;
	at->bytes += rh_align_up(elements * 4, RH_ALIGN);
	return offset;
}

struct rh_micro_layout rh_micro_layout(const struct rh_micro_shape *shape)
{
	struct rh_micro_layout at = {0};
	at.ids = append(&at, shape->tokens);
	at.position = append(&at, shape->tokens);
	at.start_q = append(&at, shape->documents + 1);
	at.start_k = append(&at, shape->documents + 1);
	at.head_row = append(&at, shape->head_rows);
	at.target = append(&at, shape->head_rows);
	at.choice = append(&at, shape->choices);
	at.type = append(&at, shape->typed);
	at.pixel = append(&at, shape->tokens * shape->pixels);
	at.teacher = append(&at, shape->head_rows * shape->taught);
	at.mix = append(&at, shape->taught ? 2 * shape->head_rows : 0);
	at.span = append(&at, shape->judged * RH_SPANS);
	at.reference = append(&at, shape->judged);
	at.row = at.bytes;
	at.bytes += shape->row_bytes ? RH_ALIGN + rh_align_up(shape->tokens * shape->row_bytes, RH_ALIGN) : 0;
	return at;
}

struct rh_result_layout rh_result_layout(const struct rh_model *model, const struct rh_micro_shape *shape, int64_t score_cols)
{
	struct rh_result_layout at = {0};
	at.hit = rh_align_up(shape->head_rows * 4, RH_ALIGN);
	at.scores = 2 * at.hit;
	at.load = at.scores + rh_align_up(shape->head_rows * score_cols * 4, RH_ALIGN);
	at.bytes = at.load + rh_align_up(rh_load_bytes(model), RH_ALIGN);
	return at;
}

struct rh_head_out rh_result_views(const struct rh_model *model, const struct rh_micro_shape *shape, int64_t score_cols, int are_logits,
                                   char *buffer)
{
	const struct rh_result_layout at = rh_result_layout(model, shape, score_cols);
	int64_t rows = shape->head_rows;
	struct rh_view scores = rh_view_of(buffer + at.scores, RH_F32, rows, score_cols);
	struct rh_head_out head = {.loss = rh_view_of(buffer + at.loss, RH_F32, rows, 1),
	                           .hit = rh_view_of(buffer + at.hit, RH_I32, rows, 1)};
	if (model->router_aux_loss_coef != 0)
		head.load = rh_view_of(buffer + at.load, RH_F32, 1, 2 * model->config->experts);
	if (score_cols)
		*(are_logits ? &head.logits : shape->top ? &head.shares : &head.choice) = scores;
	return head;
}

struct rh_micro_shape rh_micro_shape_of(const struct rh_model *model, const struct rh_micro_shape *shape)
{
	struct rh_micro_shape with = *shape;
	with.row_bytes = rh_model_row_bytes(model);
	return with;
}

void rh_micro_pack_rows(const struct rh_model *model, const struct rh_micro_batch *batch, const void *table, char *to)
{
	const struct rh_micro_shape *shape = &batch->shape;
	int64_t bytes = shape->row_bytes;
	float scale = rh_model_inputs_scale(model);
	uint16_t narrow = rh_f32_to_bf16(scale);
	char *at = to + rh_micro_layout(shape).row;
	memcpy(at, model->dtype == RH_BF16 ? (const void *)&narrow : &scale, (size_t)rh_dtype_bytes(model->dtype, 1));
	for (int64_t t = 0; t < shape->tokens; t++)
		memcpy(at + RH_ALIGN + t * bytes, (const char *)table + batch->ids[t] * bytes, (size_t)bytes);
}

/* Elements of 4 bytes. */
static void put(char *to, const void *from, int64_t elements)
{
	if (from && elements)
		memcpy(to, from, (size_t)elements * 4);
}

void rh_micro_pack(const struct rh_micro_batch *batch, char *to)
{
	const struct rh_micro_shape *shape = &batch->shape;
	const struct rh_micro_layout at = rh_micro_layout(shape);
	put(to + at.ids, batch->ids, shape->tokens);
	put(to + at.position, batch->position, shape->tokens);
	put(to + at.start_q, batch->start_q, shape->documents + 1);
	put(to + at.start_k, batch->start_k, shape->documents + 1);
	put(to + at.head_row, batch->head_row, shape->head_rows);
	put(to + at.target, batch->target, shape->head_rows);
	put(to + at.choice, batch->choice, shape->choices);
	put(to + at.type, batch->type, shape->typed);
	put(to + at.pixel, batch->pixel, shape->tokens * shape->pixels);
	put(to + at.teacher, batch->teacher, shape->head_rows * shape->taught);
	put(to + at.mix, batch->mix, shape->taught ? 2 * shape->head_rows : 0);
	put(to + at.span, batch->span, shape->judged * RH_SPANS);
	put(to + at.reference, batch->reference, shape->judged);
}

static void copy_result(void *to, const char *from, int64_t elements)
{
	if (to)
		memcpy(to, from, (size_t)elements * 4);
}

void rh_result_unpack(const struct rh_model *model, const struct rh_micro_batch *batch, int64_t score_cols, const char *from)
{
	const struct rh_micro_shape *shape = &batch->shape;
	const struct rh_result_layout at = rh_result_layout(model, shape, score_cols);
	copy_result(batch->loss, from + at.loss, shape->head_rows);
	copy_result(batch->hit, from + at.hit, shape->head_rows);
	copy_result(batch->scores, from + at.scores, shape->head_rows * score_cols);
	if (batch->load_balancing_loss)
		*batch->load_balancing_loss = rh_load_balancing_loss(model, shape->tokens, (const float *)(const void *)(from + at.load));
}
