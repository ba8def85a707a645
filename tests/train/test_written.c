/* Round trip: a model that is loaded and saved untrained is, tensor by tensor, the bits of the files that it came from, in their layout. */
#include "rig.h"

#include "core/file.h"
#include "train/tensors.h"

#include <unistd.h>

static const char *const models[] = {"llama3", "qwen2", "mistral", "phi3", "gemma3", "qwen3-moe", "gpt-oss", "gpt2"};

static void check_tensor(const struct rh_source *was, const struct rh_source *is, const struct rh_tensor *tensor)
{
	int64_t count = tensor->rows * tensor->cols;
	float *a = malloc((size_t)count * 4), *b = malloc((size_t)count * 4);
	assert_true(a && b);
	check_ok(rh_source_read(was, tensor->name, 0, count, RH_F32, a));
	check_ok(rh_source_read(is, tensor->name, 0, count, RH_F32, b));
	if (memcmp(a, b, (size_t)count * 4))
		fail_msg("%s differs", tensor->name);
	free(a);
	free(b);
}

static void test_saved_models_are_what_was_loaded(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		struct rig rig;
		char dir[96];
		int tensors = 0;
		struct rh_source *is;
		snprintf(dir, sizeof dir, "%s/rh-written-XXXXXX", check_place("/tmp"));
		assert_non_null(mkdtemp(dir));
		rig_open(&rig, models[m], NULL);
		struct rig_input in = rig_input(&rig, "docs");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		const struct rh_model *model = rig.session.model;
		check_ok(rh_weights_save(dir, model, rig.session.store));
		check_ok(rh_source_open(dir, &is));
		for (int b = 0; b < model->blocks; b++)
			for (int t = 0; t < model->block[b].tensors; t++, tensors++)
				check_tensor(rig.session.source, is, &model->block[b].tensor[t]);
		printf("%s: %d tensors equal\n", models[m], tensors);
		rh_source_close(is);
		rig_close(&rig);
		check_ok(rh_dir_remove(dir));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_saved_models_are_what_was_loaded)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
