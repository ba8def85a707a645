/* Dropout of the model itself: gradients against differences of the loss under the same counters, through the executor; the same bits
 * whatever the devices, stages and schedule; nothing dropped where nothing trains. */
#include "train/rig.h"

enum { STEP = 3, MICROS = 4, WAYS = 4 };

static const struct rh_model_dropout rates = {.embedding = 0.1f, .attention = 0.2f, .residual = 0.15f, .head = 0.1f, .noise = 5};
/* GPT-2: pre-norm, causal; BERT: the norm behind the sum, both directions; a classifier; images; a family that drops in attention alone */
static const char *const models[] = {"gpt2", "bert-mlm", "bert-cls", "vit", "qwen3"};
enum { MODELS = sizeof models / sizeof *models };

static void start(struct rig *rig, const char *model, const char *device, const char *schedule, struct rig_input *in,
                  const struct rh_model_dropout *drop)
{
	rig_open(rig, model, NULL);
	rig->config.device = (char *)(uintptr_t)device;
	rig->config.schedule = (char *)(uintptr_t)schedule;
	*in = rig_input(rig, "train");
	check_ok(rh_session_open(&rig->config, RH_SESSION_TRAINS, &rig->session));
	struct rh_model *built = rig->session.model;
	built->drop = *drop;
	if (built->layer[1].traits.residual == RH_RESIDUAL_PRE && !strcmp(model, "qwen3"))
		built->drop.residual = built->drop.embedding = 0;
	if (!strcmp(model, "vit"))
		built->drop.noise = 0;
	if (strcmp(model, "bert-cls"))
		built->drop.head = 0;
	struct rh_workload work = {.train = rig_limits(in, 0), .train_micro_batches = MICROS};
	check_ok(rh_session_start(&rig->session, &work));
}

/* All trained weights become those of `at` + factor * way. */
static void put(const struct rh_session *session, const float *at, const double *way, double factor)
{
	int64_t i = 0;
	for (int b = 0; b < session->model->blocks; b++)
		for (int t = 0; session->model->block[b].trainable && t < session->model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &session->model->block[b].tensor[t];
			int64_t n = tensor->rows * tensor->cols;
			float *values = malloc((size_t)n * sizeof *values);
			assert_non_null(values);
			for (int64_t k = 0; k < n; k++)
				values[k] = (float)((double)at[i + k] + factor * way[i + k]);
			check_ok(rh_store_set(session->store, b, t, 0, n, values));
			free(values);
			i += n;
		}
}

static void gradients(const struct rh_session *session, double *out)
{
	int64_t i = 0;
	for (int b = 0; b < session->model->blocks; b++)
		for (int t = 0; session->model->block[b].trainable && t < session->model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &session->model->block[b].tensor[t];
			const float *gradient = (const float *)rh_store_gradient(session->store, b) + tensor->offset;
			for (int64_t k = 0; k < tensor->rows * tensor->cols; k++)
				out[i++] = (double)gradient[k];
		}
}

/* Along the gradient, and along ways drawn by chance around it. The loss is a sum of fp32 products, off by some 1e-6 of itself, and a way
 * changes it by about 1e-2: 1e-3 of the change; what is cubic in the way is less. */
static void test_gradients_are_those_of_the_same_counters(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int m = 0; m < MODELS; m++) {
		struct rig rig;
		struct rig_input in;
		int64_t count;
		start(&rig, models[m], "cpu:1", NULL, &in, &rates);
		int64_t micros = in.micros < MICROS ? in.micros : MICROS;
		double loss = rig_step(&rig, &in, 0, micros, STEP);
		(void)rig_norm(&rig.session);
		float *weights = rig_weights(&rig.session, &count);
		double *gradient = calloc((size_t)count, sizeof *gradient), *way = calloc((size_t)count, sizeof *way), worst = 0;
		assert_true(gradient && way);
		gradients(&rig.session, gradient);
		for (int k = 0; k < WAYS; k++) {
			double expected = 0;
			for (int64_t i = 0; i < count; i++) {
				way[i] = gradient[i] * (k ? (double)(check_random(&random) % 3) : 1);
				expected += way[i] * gradient[i];
			}
			double factor = 1e-2 / expected;
			put(&rig.session, weights, way, factor);
			double above = rig_step(&rig, &in, 0, micros, STEP);
			put(&rig.session, weights, way, -factor);
			double below = rig_step(&rig, &in, 0, micros, STEP), off = fabs((above - below) / (2e-2) - 1);
			worst = off > worst ? off : worst;
		}
		put(&rig.session, weights, way, 0);
		printf("%s: the loss changes as the gradient says, off by at most %.2g\n", models[m], worst);
		assert_true(worst < 5e-3);
		assert_true(rig_step(&rig, &in, 0, micros, STEP) == loss);     /* the same counters */
		assert_true(rig_step(&rig, &in, 0, micros, STEP + 1) != loss); /* others */
		free(weights);
		free(gradient);
		free(way);
		rig_close(&rig);
	}
}

/* Three steps with updates: the weights of all ways are those of one device. */
static void test_bits_do_not_depend_on_where_layers_run(void **state)
{
	(void)state;
	static const struct {
		const char *device, *schedule;
	} ways[] = {{"cpu:1", NULL}, {"cpu:3", NULL}, {"cpu:2", "1f1b"}, {"cpu:2", "looped-bfs"}};
	static const struct rh_model_dropout none = {0};
	for (int m = 0; m < MODELS; m++) {
		uint64_t first = 0;
		for (int w = 0; w < 5; w++) {
			struct rig rig;
			struct rig_input in;
			start(&rig, models[m], ways[w % 4].device, ways[w % 4].schedule, &in, w < 4 ? &rates : &none);
			int64_t micros = in.micros < MICROS ? in.micros : MICROS;
			for (int64_t step = 0; step < 3; step++) {
				(void)rig_step(&rig, &in, 0, micros, step);
				(void)rig_update(&rig, 1e-3, step);
			}
			uint64_t hash = rig_weights_hash(&rig.session);
			first = w ? first : hash;
			assert_true(w < 4 ? hash == first : hash != first);
			rig_close(&rig);
		}
	}
}

static void test_split_backwards_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	rig_open(&rig, "gpt2", NULL);
	rig.config.device = (char *)(uintptr_t) "cpu:2";
	rig.config.schedule = (char *)(uintptr_t) "zb-h1";
	struct rig_input in = rig_input(&rig, "train");
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	rig.session.model->drop = rates;
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
	int rc = rh_session_start(&rig.session, &work);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "model_dropout: what a half adds"));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gradients_are_those_of_the_same_counters),
	        cmocka_unit_test(test_bits_do_not_depend_on_where_layers_run),
	        cmocka_unit_test(test_split_backwards_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
