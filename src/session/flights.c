#include "session/flights.h"

#include "core/alloc.h"

int rh_flights_reserve(const struct rh_workload *work, int64_t count, struct rh_flights *out)
{
	const struct rh_batch_limits limits = {.tokens = work->train.tokens,
	                                       .documents = work->train.documents,
	                                       .trained = work->train.head_rows,
	                                       .longest = work->train.longest,
	                                       .pixels = work->train.pixels};
	size_t micros = (size_t)work->train_micro_batches, all = micros * (size_t)count;
	*out = (struct rh_flights){.count = count, .micro_batches = work->train_micro_batches};
	out->batch = rh_alloc(micros, sizeof *out->batch);
	out->micro = rh_alloc(micros, sizeof *out->micro);
	out->step = rh_alloc((size_t)count, sizeof *out->step);
	out->loss = rh_alloc(all, sizeof *out->loss);
	out->load_balancing_loss = rh_alloc(all, sizeof *out->load_balancing_loss);
	out->targets = rh_alloc(all, sizeof *out->targets);
	int rc = out->batch && out->micro && out->step && out->loss && out->load_balancing_loss && out->targets ? 0 : -ENOMEM;
	for (size_t m = 0; !rc && m < micros; m++)
		rc = rh_batch_reserve(&out->batch[m], &limits);
	for (size_t m = 0; !rc && m < all; m++)
		if (!(out->loss[m] = rh_alloc((size_t)limits.trained, sizeof(float))))
			rc = -ENOMEM;
	return rc;
}

void rh_flights_free(struct rh_flights *flights)
{
	for (int64_t m = 0; flights->batch && m < flights->micro_batches; m++)
		rh_batch_free(&flights->batch[m]);
	for (int64_t m = 0; flights->loss && m < flights->count * flights->micro_batches; m++)
		rh_free(flights->loss[m]);
	rh_free(flights->batch);
	rh_free(flights->micro);
	rh_free(flights->step);
	rh_free(flights->loss);
	rh_free(flights->load_balancing_loss);
	rh_free(flights->targets);
	*flights = (struct rh_flights){0};
}

void rh_flights_use(struct rh_flights *flights, const struct rh_session *session, int64_t step, int64_t count)
{
	int64_t first = rh_flight_first(flights, step);
	struct rh_flight *flight = rh_flight_of(flights, step);
	*flight = (struct rh_flight){.count = count};
	for (int64_t m = 0; m < count; m++) {
		const struct rh_batch *batch = &flights->batch[m];
		struct rh_micro_batch *micro = &flights->micro[m];
		*micro = rh_micro_of(batch);
		micro->loss = rh_model_has_head(session->model) ? flights->loss[first + m] : NULL;
		micro->load_balancing_loss = &flights->load_balancing_loss[first + m];
		flights->targets[first + m] = batch->trained;
		flight->tokens += batch->tokens;
		flight->trained += batch->trained;
	}
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
	if (count > 0)
		rh_flights_use(flights, session, step, count);
	return count;
}

double rh_flight_loss(const struct rh_flights *flights, int64_t step)
{
	const struct rh_flight *flight = rh_flight_of(flights, step);
	int64_t first = rh_flight_first(flights, step);
	double total = 0, balance = 0;
	for (int64_t m = first; m < first + flight->count; m++) {
		double sum = 0;
		balance += flights->load_balancing_loss[m];
		for (int64_t i = 0; i < flights->targets[m]; i++)
			sum += (double)flights->loss[m][i];
		total += sum;
	}
	return total / (double)flight->trained + balance / (double)flight->count;
}
