/* Training on images as a person calls it: a class folder in, a model and an adapter out, and their judgement. */
#include "runner.h"

#include "ckpt/safetensors.h"
#include "core/json.h"

#define CLASSES "tests/reference/data/images/classes"

/* A model of 12 by 12 pixels that begins at random. */
static void make_good(struct scratch *scratch)
{
	scratch_open(scratch);
	check_ok(rh_dir_make(path_of("%s/vit", scratch->dir)));
	write_text(
	        path_of("%s/vit/config.json", scratch->dir),
	        "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"hidden_size\": 24, \"image_size\": 12, "
	        "\"patch_size\": 4, \"intermediate_size\": 36, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_labels\": 2}");
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json",
	          path_of("%s/vit/preprocessor_config.json", scratch->dir));
	write_text(path_of("%s/run.yaml", scratch->dir),
	           "train_file: " CLASSES "\nvalidation_file: " CLASSES "\nmax_steps: 20\nper_device_train_batch_size: 6\n"
	           "learning_rate: 3.0e-3\neval_strategy: epoch\ndevice: cpu:1\n");
}

static void says(const struct ran *ran, const char *part)
{
	if (ran->status || (!strstr(ran->out, part) && !strstr(ran->err, part)))
		fail_msg("exit %d, without '%s': %s%s", ran->status, part, ran->out, ran->err);
}

/* Twelve images are learnt by heart; then an adapter on what came out of it, with its classifier, by the names that PEFT looks for. */
static void test_images_are_learnt_and_judged(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	struct ran ran = run_line(&scratch, "train %s/run.yaml --config_name %s/vit --output_dir %s/out --max_steps 60", dir, dir, dir);
	says(&ran, "12 images of 2 classes, 10 tokens each");
	run_free(&ran);
	assert_true(rh_file_exists(path_of("%s/out/preprocessor_config.json", dir)));
	ran = run_line(&scratch, "eval %s/run.yaml --model_name_or_path %s/out", dir, dir);
	says(&ran, "accuracy 1.0000");
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --model_name_or_path %s/out --use_peft true --output_dir %s/adapter", dir, dir, dir);
	says(&ran, "written to");
	run_free(&ran);
	struct rh_safetensors *file;
	check_ok(rh_safetensors_open(path_of("%s/adapter/adapter_model.safetensors", dir), &file));
	static const char *const names[] = {"base_model.model.vit.layers.0.attention.q_proj.lora_A.weight",
	                                    "base_model.model.vit.layers.1.attention.v_proj.lora_B.weight",
	                                    "base_model.model.classifier.weight"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!rh_safetensors_find(file, names[i]))
			fail_msg("no %s", names[i]);
	assert_int_equal(rh_safetensors_count(file), 2 * 2 * 2 + 2);
	rh_safetensors_close(file);
	ran = run_line(&scratch, "eval %s/run.yaml --model_name_or_path %s/out --adapter_name_or_path %s/adapter", dir, dir, dir);
	says(&ran, "accuracy 1.0000");
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_faults_of_images_stop_with_one_line(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	struct ran ran = run_line(&scratch, "train %s/run.yaml --config_name %s/vit --output_dir %s/out --num_labels 3", dir, dir, dir);
	check_failed(&ran, "2 class folders, but the model has 3 labels; set num_labels: 2");
	run_free(&ran);
	ran = run_line(&scratch, "train %s/run.yaml --config_name %s/vit --output_dir %s/out --train_file %s/run.yaml", dir, dir, dir, dir);
	check_failed(&ran, "no IDX file of bytes with 3 sizes");
	run_free(&ran);
	check_ok(rh_dir_make(path_of("%s/classes/one", dir)));
	check_ok(rh_dir_make(path_of("%s/classes/two", dir)));
	write_text(path_of("%s/classes/one/a.png", dir), "no image");
	copy_file(CLASSES "/two/small.ppm", path_of("%s/classes/two/b.ppm", dir));
	ran = run_line(&scratch, "train %s/run.yaml --config_name %s/vit --output_dir %s/out --train_file %s/classes", dir, dir, dir, dir);
	check_failed(&ran, "classes/one/a.png: no PNG, no JPEG, no PGM or PPM");
	run_free(&ran);
	ran = run_line(&scratch, "inspect %s/run.yaml --model_name_or_path tests/reference/models/vit", dir);
	check_failed(&ran, "inspect shows rows of text; ViTForImageClassification reads images");
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_images_are_learnt_and_judged),
	                                   cmocka_unit_test(test_faults_of_images_stop_with_one_line)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
