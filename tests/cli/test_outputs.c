/* What a verb may write over: its own earlier results, what is empty, and with --force regular files; devices, pipes and links never. */
#include "cli/good.h"

#include "core/clock.h"

#include <sys/sysmacros.h>
#include <unistd.h>

#define FILES 7

/* Verbs that write one file, with the key that names it; '@' is the scratch directory. `first`: a part of the first line of its file. */
static const struct {
	const char *line, *key, *first;
} writers[FILES] = {
        {"merge --model_name_or_path @/hf --adapter_name_or_path @/lora --outfile ", "outfile: ", "GGUF"},
        {"export --model_name_or_path @/hf --adapter_name_or_path @/lora --outfile ", "outfile: ", "GGUF"},
        {"export --model_name_or_path @/hf --outfile ", "outfile: ", "GGUF"},
        {"inspect @/run.yaml --html ", "html: ", "Roundhouse"},
        {"plan @/run.yaml --hardware rtx4090x1 --gantt ", "gantt: ", "Roundhouse"},
        {"stress @/run.yaml --hardware rtx4090x1 --max_ram 24GiB --svg ", "svg: ", "Roundhouse"},
        {"report @/lora --html ", "html: ", "Roundhouse"},
};

static void make_scratch(struct scratch *scratch)
{
	make_good(scratch);
	run_ok(scratch, "train %s/run.yaml --use_peft true --output_dir %s/lora", scratch->dir, scratch->dir);
}

static const char *line_of(int writer, const char *rest)
{
	return path_of("%s%s", writers[writer].line, rest);
}

static void write_ok(const struct scratch *scratch, const char *line)
{
	char full[2048];
	fill_in(scratch, line, full, sizeof full);
	run_ok(scratch, "%s", full);
}

static void test_what_is_no_regular_file_is_refused_always(void **state)
{
	(void)state;
	struct scratch scratch;
	struct stat info;
	make_scratch(&scratch);
	const char *dir = scratch.dir;
	assert_int_equal(mkfifo(path_of("%s/pipe", dir), 0666), 0);
	check_ok(rh_dir_make(path_of("%s/folder", dir)));
	write_text(path_of("%s/target", dir), "");
	assert_int_equal(symlink("/dev/null", path_of("%s/to-device", dir)), 0);
	/* a device of its own: a fault must not cost this machine its /dev/null. Only root may make one */
	int devices = mknod(path_of("%s/device", dir), S_IFCHR | 0666, makedev(1, 3)) == 0;
	assert_int_equal(symlink("target", path_of("%s/link", dir)), 0);
	static const char *const places[] = {"@/pipe", "@/folder", "@/to-device", "@/link", "@/device"};
	for (int w = 0; w < FILES; w++)
		for (int p = 0; p < 4 + devices; p++) {
			refused(&scratch, line_of(w, places[p]), writers[w].key);
			refused(&scratch, line_of(w, path_of("%s --force", places[p])), "where a file is due; it is left alone");
		}
	refused(&scratch, "doctor --device cpu --save @/pipe --force", "pipe: is a device, a pipe or a socket");
	refused(&scratch, "keys --link_identity @/pipe", "link_identity: ");
	refused(&scratch, "merge --model_name_or_path @/hf --adapter_name_or_path @/lora --output_dir @/pipe --force", "output_dir: ");
	assert_true(!devices || (stat(path_of("%s/device", dir), &info) == 0 && S_ISCHR(info.st_mode)));
	assert_int_equal(lstat(path_of("%s/pipe", dir), &info), 0);
	assert_true(S_ISFIFO(info.st_mode));
	/* nor inside a directory that may be written to */
	check_ok(rh_dir_make(path_of("%s/mixed", dir)));
	assert_int_equal(mkfifo(path_of("%s/mixed/model.safetensors", dir), 0666), 0);
	refused(&scratch, "merge --model_name_or_path @/hf --adapter_name_or_path @/lora --output_dir @/mixed --force",
	        "mixed/model.safetensors: is a device, a pipe or a socket where a file is due");
	assert_int_equal(mkfifo(path_of("%s/metrics.jsonl", path_of("%s/folder", dir)), 0666), 0);
	refused(&scratch, "train @/run.yaml --output_dir @/folder", "metrics.jsonl: ");
	scratch_close(&scratch);
}

static void test_files_of_others_need_force(void **state)
{
	(void)state;
	struct scratch scratch;
	make_scratch(&scratch);
	const char *dir = scratch.dir;
	for (int w = 0; w < FILES; w++) {
		const char *other = writers[w].first[0] == 'G' ? "@/model.gguf" : "@/notes.txt";
		write_text(path_of("%s/notes.txt", dir), "years of work\n");
		write_text(path_of("%s/empty", dir), "");
		refused(&scratch, line_of(w, other), "that Roundhouse wrote; name another file, or add --force to replace it");
		refused(&scratch, line_of(w, "@/notes.txt"), writers[w].key);
		write_ok(&scratch, line_of(w, "@/empty"));
		write_ok(&scratch, line_of(w, path_of("@/new%d", w)));
		write_ok(&scratch, line_of(w, path_of("@/new%d", w))); /* its own, again */
		write_ok(&scratch, line_of(w, "@/notes.txt --force"));
		write_ok(&scratch, line_of(w, "@/notes.txt"));
		size_t length;
		char *bytes = read_bytes(path_of("%s/notes.txt", dir), &length);
		bytes[strcspn(bytes, "\n")] = 0;
		assert_non_null(strstr(bytes, writers[w].first));
		free(bytes);
	}
	/* what is read is not written over, with whatever flag */
	refused(&scratch, "export --model_name_or_path @/model.gguf --outfile @/model.gguf --force", "is what this command reads");
	refused(&scratch, "inspect @/run.yaml --html @/rows.jsonl --force", "is what this command reads");
	refused(&scratch, "train @/run.yaml --force", "unknown key 'force'");
	scratch_close(&scratch);
}

/* Refused before anything else is done. */
static void test_a_directory_that_is_not_there_is_told_first(void **state)
{
	(void)state;
	struct scratch scratch;
	make_scratch(&scratch);
	for (int w = 0; w < FILES; w++) {
		refused(&scratch, line_of(w, "@/nowhere/new --force"), writers[w].key);
		refused(&scratch, line_of(w, "@/nowhere/new"), "there is no directory|/nowhere to write new into; make it first");
		refused(&scratch, line_of(w, "@/rows.jsonl/new"), "there is no directory|/rows.jsonl to write new into");
	}
	refused(&scratch, "doctor --device cpu --save @/nowhere/here.yaml", "save: there is no directory|/nowhere to write here.yaml into");
	assert_int_equal(access(path_of("%s/nowhere", scratch.dir), F_OK), -1);
	/* the time that a trial would have is not waited for */
	double began = rh_clock_seconds();
	refused(&scratch, "stress @/run.yaml --device cpu:1 --time 60s --svg @/nowhere/new", "svg: there is no directory");
	assert_true(rh_clock_seconds() - began < 20);
	scratch_close(&scratch);
}

static void test_directories_of_others_need_force(void **state)
{
	(void)state;
	static const char *const lines[] = {"merge --model_name_or_path @/hf --adapter_name_or_path @/lora --output_dir ",
	                                    "export --model_name_or_path @/hf --output_dir ", "join --parts @/full --output_dir "};
	struct scratch scratch;
	make_scratch(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/full", dir, dir);
	for (int l = 0; l < 3; l++) {
		copy_dir(path_of("%s/hf", dir), path_of("%s/other", dir));
		check_ok(rh_dir_make(path_of("%s/empty", dir)));
		refused(&scratch, path_of("%s@/other", lines[l]), "other is not empty and holds no model that Roundhouse wrote");
		refused(&scratch, path_of("%s/", lines[l]), "output_dir: / is not empty");
		refused(&scratch, path_of("%s@/hf/config.json --force", lines[l]), "output_dir: ");
		refused(&scratch, path_of("%s@/full --force", lines[l]), l == 2 ? "reads" : "holds what a run wrote");
		/* the sums of somebody else's files are no mark */
		write_text(path_of("%s/other/SHA256SUMS", dir), "00  config.json\n");
		refused(&scratch, path_of("%s@/other", lines[l]), "add --force to overwrite what is in it");
		write_ok(&scratch, path_of("%s@/empty", lines[l]));
		write_ok(&scratch, path_of("%s@/empty", lines[l]));
		write_ok(&scratch, path_of("%s@/other --force", lines[l]));
		write_ok(&scratch, path_of("%s@/other", lines[l]));
		check_ok(rh_dir_remove(path_of("%s/other", dir)));
		check_ok(rh_dir_remove(path_of("%s/empty", dir)));
	}
	scratch_close(&scratch);
}

/* Ollama's file lies beside the GGUF; somebody else's stays. */
static void test_a_merged_gguf_has_a_modelfile(void **state)
{
	(void)state;
	static const char merge[] = "merge --model_name_or_path %s/hf --adapter_name_or_path %s/lora --outfile %s/gguf/%s";
	struct scratch scratch;
	size_t length;
	make_scratch(&scratch);
	const char *dir = scratch.dir;
	check_ok(rh_dir_make(path_of("%s/gguf", dir)));
	static const char *const names[] = {"my.gguf", "other.gguf"}; /* the second over the first's, which is this program's */
	for (int i = 0; i < 2; i++) {
		run_ok(&scratch, merge, dir, dir, dir, names[i]);
		char *text = read_bytes(path_of("%s/gguf/Modelfile", dir), &length);
		assert_non_null(strstr(text, path_of("\nFROM ./%s\n", names[i])));
		free(text);
	}
	/* which is told; with more in it, it is somebody's own by now */
	struct ran ran = run_line(&scratch, merge, dir, dir, dir, names[0]);
	if (ran.status || !strstr(ran.err, "(it was for other.gguf before)"))
		fail_msg("%s", ran.err);
	run_free(&ran);
	edit_file(path_of("%s/gguf/Modelfile", dir), "FROM ./my.gguf\n", "FROM ./my.gguf\nTEMPLATE x\n");
	ran = run_line(&scratch, merge, dir, dir, dir, names[1]);
	if (ran.status || !strstr(ran.err, "Modelfile has more in it than Roundhouse wrote") ||
	    !strstr(ran.err, "the line FROM ./other.gguf"))
		fail_msg("%s", ran.err);
	run_free(&ran);
	assert_true(find_in(path_of("%s/gguf/Modelfile", dir), "FROM ./my.gguf\nTEMPLATE x\n") > 0);
	write_text(path_of("%s/gguf/Modelfile", dir), "FROM ./mine.gguf\n");
	ran = run_line(&scratch, merge, dir, dir, dir, names[0]);
	if (ran.status || !strstr(ran.err, "Modelfile is there and is no Modelfile that Roundhouse wrote") ||
	    !strstr(ran.err, "left alone"))
		fail_msg("%s", ran.err);
	run_free(&ran);
	char *text = read_bytes(path_of("%s/gguf/Modelfile", dir), &length);
	assert_string_equal(text, "FROM ./mine.gguf\n");
	free(text);
	run_ok(&scratch, path_of("%s --force", merge), dir, dir, dir, names[0]);
	assert_true(find_in(path_of("%s/gguf/Modelfile", dir), "FROM ./my.gguf") > 0);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_what_is_no_regular_file_is_refused_always),
	        cmocka_unit_test(test_files_of_others_need_force),
	        cmocka_unit_test(test_a_directory_that_is_not_there_is_told_first),
	        cmocka_unit_test(test_directories_of_others_need_force),
	        cmocka_unit_test(test_a_merged_gguf_has_a_modelfile),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
