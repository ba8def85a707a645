/* transformers.optimization.Adafactor (Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost"): a matrix's
 * second moment is the product of a vector kept for its rows and one for its columns; the update is clipped by its own root mean square.
 *
 * Rows go in groups that the shape fixes (state_factors), one task a group; the groups' sums are added in their order. */
#include "offload/optimizer.h"
#include "offload/store_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

static const double tiny = 1e-30, clip_threshold = 1, decay_rate = -0.8; /* TrainingArguments gives no other */

enum { COLUMNS = 4096 }; /* of one task that adds groups up */

struct pass {
	const struct rh_store *store;
	const struct store_block *block;
	const struct store_view *view;
	const struct rh_tensor *tensor;
	struct state_factors shape;
	float *row, *column; /* kept; a vector: column alone */
	float *sum;          /* (groups, cols): of squares */
	float *factor;       /* (cols): 1 / root of what is kept */
	double *squares;     /* (groups) */
	float scale;
	double decay;    /* beta2 of this step */
	double row_mean; /* of what is kept of rows */
	double step;     /* learning rate, gradient's scale and clipping together */
	float keep;
	_Atomic int bad;
};

struct rows {
	int64_t first, end;
};

static struct rows rows_of(const struct pass *pass, int64_t group)
{
	int64_t first = group * pass->shape.group_rows, end = first + pass->shape.group_rows;
	return (struct rows){first, end < pass->shape.rows ? end : pass->shape.rows};
}

static struct optimizer_span row_at(const struct pass *pass, int64_t row)
{
	return store_span_at(pass->store, pass->block, pass->view, pass->tensor->offset + row * pass->shape.cols);
}

static int is_wide(const struct pass *pass)
{
	return pass->store->form == FORM_WIDE;
}

/* Squares of a group's gradients: summed by column, and into what is kept of its rows. */
static void square_group(void *context, int64_t group)
{
	struct pass *pass = context;
	const struct optimizer_kernels *kernels = pass->store->kernels;
	struct rows rows = rows_of(pass, group);
	int64_t cols = pass->shape.cols;
	float *sum = pass->sum + group * cols;
	memset(sum, 0, (size_t)cols * sizeof *sum);
	for (int64_t r = rows.first; r < rows.end; r++) {
		struct optimizer_span at = row_at(pass, r);
		kernels->columns(at.gradient, is_wide(pass), pass->scale, sum, cols);
		if (!pass->shape.factored)
			continue;
		double squares = is_wide(pass) ? kernels->squares_f32(at.gradient, cols) : kernels->squares_bf16(at.gradient, cols);
		double mean = squares * pass->scale * pass->scale / (double)cols + tiny;
		pass->row[r] = (float)(pass->decay * pass->row[r] + (1 - pass->decay) * mean);
	}
}

static void add_groups(void *context, int64_t task)
{
	struct pass *pass = context;
	int64_t cols = pass->shape.cols, end = (task + 1) * COLUMNS < cols ? (task + 1) * COLUMNS : cols;
	double rows = (double)pass->shape.rows;
	for (int64_t c = task * COLUMNS; c < end; c++) {
		double sum = 0;
		for (int64_t g = 0; g < pass->shape.groups; g++)
			sum += (double)pass->sum[g * cols + c];
		pass->column[c] = (float)(pass->decay * pass->column[c] + (1 - pass->decay) * (sum / rows + tiny));
		pass->factor[c] = 1 / sqrtf(pass->column[c]);
	}
}

static double row_factor(const struct pass *pass, int64_t row)
{
	return pass->shape.factored ? 1 / sqrt((double)pass->row[row] / pass->row_mean) : 1;
}

static void measure_group(void *context, int64_t group)
{
	struct pass *pass = context;
	struct rows rows = rows_of(pass, group);
	double total = 0;
	for (int64_t r = rows.first; r < rows.end; r++) {
		double factor = row_factor(pass, r);
		total += factor * factor *
		         pass->store->kernels->weighted(row_at(pass, r).gradient, is_wide(pass), pass->factor, pass->shape.cols);
	}
	pass->squares[group] = total;
}

static void apply_group(void *context, int64_t group)
{
	struct pass *pass = context;
	struct rows rows = rows_of(pass, group);
	int bad = 0;
	for (int64_t r = rows.first; r < rows.end; r++) {
		struct optimizer_span at = row_at(pass, r);
		float step = (float)(pass->step * row_factor(pass, r));
		bad |= pass->store->kernels->apply[pass->store->form](&at, pass->factor, step, pass->keep, pass->shape.cols);
	}
	if (bad)
		atomic_store_explicit(&pass->bad, 1, memory_order_relaxed); /* the pool's end of run publishes it */
}

static double sum_of(const float *values, int64_t count)
{
	double sum = 0;
	for (int64_t i = 0; i < count; i++)
		sum += (double)values[i];
	return sum;
}

int adafactor_update(struct rh_store *store, int block, int tensor, const struct store_view *view, const struct rh_update *update)
{
	const struct rh_block *spec = &store->spec[block];
	double rate = optimizer_rate(update, spec->tensor[tensor].is_lora_b);
	struct pass pass = {.store = store,
	                    .block = &store->block[block],
	                    .view = view,
	                    .tensor = &spec->tensor[tensor],
	                    .shape = state_factors(&spec->tensor[tensor]),
	                    .row = state_factor_at(spec, &store->block[block], tensor),
	                    .scale = (float)update->scale,
	                    .decay = 1 - pow((double)update->step, decay_rate),
	                    .keep = (float)(spec->tensor[tensor].decays ? 1 - rate * update->settings.weight_decay : 1)};
	int64_t rows = pass.shape.rows, cols = pass.shape.cols, groups = pass.shape.groups;
	if (!rows || !cols)
		return 0;
	pass.column = pass.row + (pass.shape.factored ? rows : 0);
	pass.sum = store->scratch;
	pass.factor = (float *)(void *)((char *)store->scratch + rh_align_up(groups * cols * 4, RH_ALIGN));
	pass.squares = (double *)(void *)((char *)pass.factor + rh_align_up(cols * 4, RH_ALIGN));

	rh_pool_run(store->pool, square_group, &pass, groups);
	rh_pool_run(store->pool, add_groups, &pass, (cols + COLUMNS - 1) / COLUMNS);
	pass.row_mean = pass.shape.factored ? sum_of(pass.row, rows) / (double)rows : 1;
	rh_pool_run(store->pool, measure_group, &pass, groups);
	double squares = 0;
	for (int64_t g = 0; g < groups; g++)
		squares += pass.squares[g];
	double root = sqrt(squares / ((double)rows * (double)cols)) * pass.scale / clip_threshold;
	pass.step = rate * pass.scale / (root > 1 ? root : 1);
	rh_pool_run(store->pool, apply_group, &pass, groups);
	return atomic_load_explicit(&pass.bad, memory_order_relaxed);
}
