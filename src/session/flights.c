#include "session/flights.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "session/chunks.h"
#include "session/preference.h"

#include <string.h>

/* Of `all` micro-batches, each with so many documents and head rows at most. */
static int reserve_judged(struct rh_flights *out, size_t all, size_t documents, size_t rows)
{
	out->documents = rh_alloc(all, sizeof *out->documents);
	out->span = rh_alloc(all, sizeof *out->span);
	out->reference = rh_alloc(all, sizeof *out->reference);
	out->sums = rh_alloc(2 * documents, sizeof *out->sums);
	out->row_loss = rh_alloc(rows, sizeof *out->row_loss);
	int rc = out->documents && out->span && out->reference && out->sums && out->row_loss ? 0 : -ENOMEM;
	for (size_t m = 0; !rc && m < all; m++) {
		out->span[m] = rh_alloc(documents * RH_SPANS, sizeof **out->span);
		out->reference[m] = rh_alloc(documents, sizeof **out->reference);
		rc = out->span[m] && out->reference[m] ? 0 : -ENOMEM;
	}
	return rc;
}

int rh_flights_reserve(const struct rh_workload *work, int64_t count, struct rh_flights *out)
{
	int chunks = rh_chunks_of(work);
	const struct rh_micro_shape *row = chunks > 1 ? &work->row : &work->train;
	const struct rh_batch_limits limits = {.tokens = row->tokens,
	                                       .documents = row->documents,
	                                       .trained = row->head_rows,
	                                       .longest = row->longest,
	                                       .pixels = row->pixels,
	                                       .judged = row->judged};
	size_t micros = (size_t)work->train_micro_batches, all = micros * (size_t)count;
	*out = (struct rh_flights){.count = count, .micro_batches = work->train_micro_batches, .chunks = chunks};
	/* a document that is cut counts once more in each chunk */
	out->numbers_each = chunks > 1 ? 2 * (row->documents + 2 * chunks) + row->head_rows : 0;
	out->numbers = rh_alloc(micros / (size_t)chunks * (size_t)out->numbers_each + 1, sizeof *out->numbers);
	out->batch = rh_alloc(micros, sizeof *out->batch);
	out->micro = rh_alloc(micros, sizeof *out->micro);
	out->step = rh_alloc((size_t)count, sizeof *out->step);
	out->loss = rh_alloc(all, sizeof *out->loss);
	out->load_balancing_loss = rh_alloc(all, sizeof *out->load_balancing_loss);
	out->targets = rh_alloc(all, sizeof *out->targets);
	int rc = out->numbers && out->batch && out->micro && out->step && out->loss && out->load_balancing_loss && out->targets ? 0
	                                                                                                                        : -ENOMEM;
	for (size_t m = 0; !rc && m < micros / (size_t)chunks; m++)
		rc = rh_batch_reserve(&out->batch[m], &limits);
	for (size_t m = 0; !rc && m < all; m++)
		if (!(out->loss[m] = rh_alloc((size_t)rh_max(work->train.head_rows, 1), sizeof(float))))
			rc = -ENOMEM;
	return rc || !row->judged ? rc : reserve_judged(out, all, (size_t)row->judged, chunks > 1 ? (size_t)row->head_rows : 1);
}

void rh_flights_free(struct rh_flights *flights)
{
	for (int64_t m = 0; flights->batch && m < flights->micro_batches; m++)
		rh_batch_free(&flights->batch[m]);
	for (int64_t m = 0; flights->loss && m < flights->count * flights->micro_batches; m++)
		rh_free(flights->loss[m]);
	for (int64_t m = 0; flights->span && flights->reference && m < flights->count * flights->micro_batches; m++) {
		rh_free(flights->span[m]);
		rh_free(flights->reference[m]);
	}
	rh_free(flights->documents);
	rh_free(flights->span);
	rh_free(flights->reference);
	rh_free(flights->sums);
	rh_free(flights->row_loss);
	rh_free(flights->numbers);
	rh_free(flights->batch);
	rh_free(flights->micro);
	rh_free(flights->step);
	rh_free(flights->loss);
	rh_free(flights->load_balancing_loss);
	rh_free(flights->targets);
	*flights = (struct rh_flights){0};
}

/* Makes the chunks of a row, in `flights->micro` from number `at` on. */
static int cut_row(struct rh_flights *flights, const struct rh_chunk_rule *rule, int64_t at)
{
	struct rh_micro_batch row = rh_micro_of(&flights->batch[at / flights->chunks]);
	int32_t *numbers = flights->numbers + at / flights->chunks * flights->numbers_each;
	int64_t cut[RH_CHUNKS_MOST + 1], count = rh_chunks_cut(rule, row.start_q, row.shape.documents, cut);
	if (count < 0)
		return (int)count;
	RH_ASSERT(count <= flights->chunks);
	for (int c = 0; c < flights->chunks; c++) {
		struct rh_micro_shape shape = rh_chunk_of(&row, cut, c, (int)count, &(struct rh_chunk_room){0}).shape;
		struct rh_chunk_room room = {.start_q = numbers};
		room.start_k = room.start_q + shape.documents + 1;
		room.head_row = room.start_k + shape.documents + 1;
		numbers = room.head_row + shape.head_rows;
		flights->micro[at + c] = rh_chunk_of(&row, cut, c, (int)count, &room);
	}
	RH_ASSERT(numbers <= flights->numbers + (at / flights->chunks + 1) * flights->numbers_each);
	return 0;
}

/* The step's results come when its batches may be another's. Of a row in chunks each has all documents; the first chunk's are kept. */
static void keep_judged(struct rh_flights *flights, const struct rh_session *session, const struct rh_micro_batch *micro, int64_t at)
{
	flights->preference = &session->model->preference;
	flights->documents[at] = micro->shape.judged;
	memcpy(flights->span[at], micro->span, (size_t)micro->shape.judged * RH_SPANS * sizeof *micro->span);
	memcpy(flights->reference[at], micro->reference, (size_t)micro->shape.judged * sizeof *micro->reference);
}

int rh_flights_use(struct rh_flights *flights, const struct rh_session *session, int64_t step, int64_t count)
{
	int64_t first = rh_flight_first(flights, step);
	struct rh_flight *flight = rh_flight_of(flights, step);
	const struct rh_chunk_rule rule = rh_chunk_rule_of(session->work.chunk, session->model);
	*flight = (struct rh_flight){.count = count * flights->chunks};
	for (int64_t m = 0; m < flight->count; m++) {
		const struct rh_batch *batch = &flights->batch[m / flights->chunks];
		struct rh_micro_batch *micro = &flights->micro[m];
		if (flights->chunks == 1)
			*micro = rh_micro_of(batch);
		int rc = flights->chunks > 1 && m % flights->chunks == 0 ? cut_row(flights, &rule, m) : 0;
		if (rc)
			return rc;
		micro->loss = rh_model_has_head(session->model) ? flights->loss[first + m] : NULL;
		micro->load_balancing_loss = &flights->load_balancing_loss[first + m];
		flights->targets[first + m] = micro->shape.head_rows;
		if (micro->shape.judged && m % flights->chunks == 0)
			keep_judged(flights, session, micro, first + m);
		flight->tokens += micro->shape.tokens;
		flight->trained += micro->shape.head_rows;
	}
	return 0;
}

int64_t rh_flights_make(struct rh_flights *flights, const struct rh_training_data *data, int64_t step)
{
	int64_t epoch = step / data->steps_per_epoch, within = step % data->steps_per_epoch;
	int64_t count = rh_sampler_micro_batches(data->sampler, within);
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(data->sampler, epoch, within, m, &rows);
		flights->batch[m].draw = (uint32_t)epoch + 1;
		int rc = rh_batch_make(&data->train, rows, n, &flights->batch[m]);
		if (rc)
			return rc;
	}
	return count;
}

int64_t rh_flights_fill(struct rh_flights *flights, const struct rh_session *session, const struct rh_training_data *data, int64_t step)
{
	int64_t count = rh_flights_make(flights, data, step);
	int rc = count > 0 ? rh_flights_use(flights, session, step, count) : 0;
	return rc ? rc : count < 0 ? count : count * flights->chunks;
}

/* A row's, which begins with this micro-batch. */
static struct rh_judged_losses judged_of(const struct rh_flights *flights, int64_t at)
{
	const float *loss = flights->loss[at];
	int64_t rows = flights->targets[at];
	if (flights->chunks > 1) {
		loss = flights->row_loss;
		rows = 0;
		for (int64_t m = at; m < at + flights->chunks; rows += flights->targets[m++])
			memcpy(flights->row_loss + rows, flights->loss[m], (size_t)flights->targets[m] * sizeof *loss);
	}
	return (struct rh_judged_losses){flights->span[at], flights->reference[at], loss, flights->documents[at], rows, flights->sums};
}

double rh_flight_divisor(const struct rh_flights *flights, int64_t step)
{
	const struct rh_flight *flight = rh_flight_of(flights, step);
	int64_t first = rh_flight_first(flights, step), documents = 0;
	if (!flights->preference)
		return (double)flight->trained;
	for (int64_t m = first; m < first + flight->count; m += flights->chunks)
		documents += flights->documents[m];
	return (double)(documents / flights->preference->answers);
}

void rh_flight_tell(const struct rh_flights *flights, int64_t step, struct rh_figures *figures)
{
	int64_t first = rh_flight_first(flights, step);
	for (int64_t m = first; flights->preference && m < first + rh_flight_of(flights, step)->count; m += flights->chunks) {
		const struct rh_judged_losses batch = judged_of(flights, m);
		(void)rh_preference_judge(flights->preference, &batch, figures);
	}
}

static double sum_of(const struct rh_flights *flights, int64_t at)
{
	double sum = 0;
	for (int64_t i = 0; i < flights->targets[at]; i++)
		sum += (double)flights->loss[at][i];
	return sum;
}

double rh_flight_loss(const struct rh_flights *flights, int64_t step)
{
	const struct rh_flight *flight = rh_flight_of(flights, step);
	int64_t first = rh_flight_first(flights, step);
	double total = 0, balance = 0;
	for (int64_t m = first; m < first + flight->count; m++) {
		balance += flights->load_balancing_loss[m];
		if (flights->preference && (m - first) % flights->chunks == 0) {
			const struct rh_judged_losses batch = judged_of(flights, m);
			total += rh_preference_judge(flights->preference, &batch, NULL);
		} else if (!flights->preference) {
			total += sum_of(flights, m);
		}
	}
	return total / rh_flight_divisor(flights, step) + balance / (double)flight->count;
}
