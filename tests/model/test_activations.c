/* The activation table against what is emitted, for every layer of every family: where one row alone is recomputed, the ops read no other
 * kept row than those that the table names, and make it; and the places of rows are the same whoever asks. */
#include "check.h"

#include "core/alloc.h"
#include "model/emit.h"
#include "model/family.h"

#include <dirent.h>

#define MODELS "tests/reference/models"

/* Addresses that nothing is behind. */
static char *const KEPT = (char *)((uintptr_t)1 << 50), *const ARENA = (char *)((uintptr_t)1 << 51),
                   *const WEIGHTS = (char *)((uintptr_t)1 << 52), *const INPUT = (char *)((uintptr_t)1 << 53);
enum { BYTES = 1 << 30, LAYERS_MOST = 16 };

/* What ops did with rows of two layers that follow one another. */
struct seen {
	const struct rh_stage_state *state;
	int lo, hi;
	rh_row_set read[2], written[2]; /* read: before it was written */
	int ops;
};

static void see(struct seen *seen, const char *at, int reads, int writes)
{
	for (int l = seen->lo; l < seen->hi; l++)
		for (int row = 0; row < RH_ACTIVATIONS; row++) {
			const struct rh_activations *layer = &seen->state->layer[l];
			const struct rh_view *view = &layer->view[row];
			const char *first = view->data;
			if (!(layer->placed & RH_ROW_SET(row)) || at < first || at >= first + rh_view_bytes(*view))
				continue;
			if (reads && !(seen->written[l - seen->lo] & RH_ROW_SET(row)))
				seen->read[l - seen->lo] |= RH_ROW_SET(row);
			if (writes)
				seen->written[l - seen->lo] |= RH_ROW_SET(row);
		}
}

static int see_op(void *sink, const struct rh_op *op)
{
	struct seen *seen = sink;
	const struct rh_op_info *info = rh_op_info(op->kind);
	seen->ops++;
	for (int writes = 0; writes < 2; writes++)
		for (int i = 0; i < info->operands; i++) {
			enum rh_access access = info->operand[i].access;
			if (op->operand[i].data && access == (writes ? RH_ACCESS_OUT : RH_ACCESS_IN))
				see(seen, op->operand[i].data, !writes, writes);
			else if (op->operand[i].data && access == RH_ACCESS_INOUT)
				see(seen, op->operand[i].data, !writes, writes);
		}
	return 0;
}

struct bench {
	struct rh_model *model;
	struct rh_stage_state state;
	char **weights;
	float *(*gradient)[2];
	struct rh_fates fates[LAYERS_MOST];
	struct rh_micro_shape shape;
};

/* Recomputes layers [lo, lo + 2), of which all is kept but what fates say. */
static struct seen recompute(struct bench *bench, int lo)
{
	struct seen seen = {.state = &bench->state, .lo = lo, .hi = lo + 2};
	struct rh_arena arena = {ARENA, BYTES, 0, 0}, kept = {KEPT, BYTES, 0, 0};
	struct rh_view x = rh_boundary_view(bench->model, lo, bench->shape.tokens, INPUT);
	struct rh_emit emit = {.model = bench->model,
	                       .launch = see_op,
	                       .sink = &seen,
	                       .arena = &arena,
	                       .kept = &kept,
	                       .fates = bench->fates,
	                       .shape = bench->shape,
	                       .micro = INPUT + BYTES,
	                       .weights = bench->weights,
	                       .gradient = bench->gradient,
	                       .loss_scale = 1};
	check_ok(rh_stage_recompute(&emit, lo, lo + 2, x, &bench->state, NULL));
	return seen;
}

/* One row alone, of a layer of the stage. lent: of each layer the rows that what lies beside activations is made of. */
static void check_row(struct bench *bench, int lo, const struct rh_stage_row *row, const rh_row_set lent[2])
{
	const char *model = bench->model->config->family->model_type;
	int own = row->layer - lo, maker = own - (row->is.maker == RH_MAKER_BELOW);
	bench->fates[row->layer].kept &= ~RH_ROW_SET(row->is.row);
	struct seen seen = recompute(bench, lo);
	bench->fates[row->layer].kept |= RH_ROW_SET(row->is.row);
	if (!(seen.written[own] & RH_ROW_SET(row->is.row)))
		fail_msg("%s: nothing makes row %d of layer %d", model, row->is.row, row->layer);
	for (int l = 0; l < 2; l++) {
		rh_row_set ropes = RH_ROW_RUN(RH_ROW_ROPE, RH_ROPES),
		           may = (l == maker ? row->is.from : 0) | (l ? 0 : row->is.from & ropes);
		may |= row->is.side == RH_SIDE_FROM ? lent[l] : 0;
		for (int other = 0; other < RH_ACTIVATIONS; other++)
			if (seen.read[l] & ~may & RH_ROW_SET(other))
				fail_msg("%s: for row %d of layer %d row %d of layer %d is read, which is not in the table", model,
				         row->is.row, row->layer, other, lo + l);
	}
}

static int check_stage(struct bench *bench, int lo)
{
	struct rh_emit emit = {.model = bench->model, .fates = bench->fates, .shape = bench->shape};
	struct rh_stage_rows rows;
	struct rh_stage_row row;
	rh_row_set lent[2] = {0, 0};
	int checked = 0;
	for (int l = 0; l < bench->model->layers; l++)
		bench->fates[l] = (struct rh_fates){.kept = ~(rh_row_set)0};
	rh_stage_rows(&emit, lo, lo + 2, &rows);
	while (rh_stage_next_row(&rows, &row))
		lent[row.layer - lo] |= row.is.side == RH_SIDE_TO ? RH_ROW_SET(row.is.row) : 0;
	rh_stage_rows(&emit, lo, lo + 2, &rows);
	while (rh_stage_next_row(&rows, &row)) {
		if (row.is.maker == RH_MAKER_BACKWARD)
			continue;
		assert_int_equal(recompute(bench, lo).ops, 0); /* all lies there */
		assert_ptr_equal(bench->state.layer[row.layer].view[row.is.row].data, KEPT + row.offset);
		assert_int_equal(rh_view_bytes(bench->state.layer[row.layer].view[row.is.row]), row.bytes);
		check_row(bench, lo, &row, lent);
		checked++;
	}
	return checked;
}

/* Of a layer's linears. */
static int every_module(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "layers.") || strstr(name, "layer.") || strstr(name, "h.") || strstr(name, "blk.") ? 4 : 0;
	*scale = 2;
	return 0;
}

static int check_model(const struct rh_model_config *config, enum rh_dtype dtype, const struct rh_lora_config *lora)
{
	struct bench bench = {.shape = {.tokens = 24,
	                                .documents = 2,
	                                .longest = 12,
	                                .head_rows = 10,
	                                .typed = config->types ? 24 : 0,
	                                .pixels = rh_model_patch(config)}};
	int checked = 0;
	check_ok(rh_model_create(config, dtype, lora, &bench.model));
	check_ok(rh_stage_state_create(bench.model, &bench.state));
	assert_true(bench.model->layers <= LAYERS_MOST);
	bench.weights = rh_alloc((size_t)bench.model->blocks, sizeof *bench.weights);
	bench.gradient = rh_alloc((size_t)bench.model->blocks, sizeof *bench.gradient);
	assert_true(bench.weights && bench.gradient);
	for (int b = 0; b < bench.model->blocks; b++)
		bench.weights[b] = WEIGHTS;
	for (int lo = 1; lo + 2 < bench.model->layers; lo++)
		checked += check_stage(&bench, lo);
	rh_free(bench.weights);
	rh_free(bench.gradient);
	rh_stage_state_free(&bench.state);
	rh_model_destroy(bench.model);
	return checked;
}

static void test_a_row_is_made_of_the_rows_that_the_table_names(void **state)
{
	(void)state;
	const struct rh_lora_config lora = {.module = every_module};
	int models = 0, checked = 0;
	DIR *dir = opendir(MODELS);
	assert_non_null(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		char path[512];
		struct rh_model_config config;
		snprintf(path, sizeof path, MODELS "/%s/config.json", entry->d_name);
		if (*entry->d_name == '.' || access(path, R_OK))
			continue;
		check_ok(rh_model_config_load(path, &config));
		for (int variant = 0; variant < 4; variant++)
			checked += check_model(&config, variant & 1 ? RH_BF16 : RH_F32, variant & 2 ? &lora : NULL);
		rh_model_config_free(&config);
		models++;
	}
	closedir(dir);
	printf("%d rows of %d models\n", checked, models);
	assert_true(checked > 100 * models);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_row_is_made_of_the_rows_that_the_table_names)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
