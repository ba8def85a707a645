/* `roundhouse report RUN...`: what runs did, on one page (train/page.h). */
#include "cli/output.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "train/page.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
        "usage: roundhouse report RUN [RUN]... [--html FILE.html] [--force]\n\n"
        "RUN is the output_dir of a run, also of one that is still going. Writes one page that needs no other file and no "
        "network:\nloss, evaluations, answers to sample_prompts, gradient norm, learning rate, tokens/s and memory beside the "
        "plan's,\nwhere the devices' time went, the data, configuration, files; of up to four runs side by side.\n"
        "With trace_step: N in the run, also that step's picture. A run writes its own page at its end.\n"
        "FILE is RUN/" RH_PAGE_NAME " unless it is given; of several runs it must be.\n";

struct asked {
	const char *dir[RH_PAGE_RUNS];
	size_t count;
	struct rh_config config; /* html and force, as other verbs have them */
};

static int read_words(int argc, char **argv, struct asked *asked)
{
	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--force"))
			asked->config.force = 1;
		else if (!strcmp(argv[i], "--html") && i + 1 == argc)
			return rh_fail(-EINVAL, "--html: which file? --html FILE.html");
		else if (!strcmp(argv[i], "--html"))
			asked->config.html = argv[++i];
		else if (argv[i][0] == '-')
			return rh_fail(-EINVAL, "there is no flag %s; report takes --html FILE.html and --force", argv[i]);
		else if (asked->count == RH_PAGE_RUNS)
			return rh_fail(-EINVAL, "%s: report takes up to %d runs", argv[i], RH_PAGE_RUNS);
		else
			asked->dir[asked->count++] = argv[i];
	}
	if (!asked->count)
		return rh_fail(-EINVAL, "which run? roundhouse report OUTPUT_DIR");
	if (asked->count > 1 && !asked->config.html)
		return rh_fail(-EINVAL, "of several runs it must be said where the page goes: add --html FILE.html");
	return 0;
}

static int write_page(const struct asked *asked, const char *path)
{
	struct rh_text page = {0};
	int rc = rh_page_make(asked->dir, asked->count, &page);
	if (!rc)
		rc = verb_check_output(&asked->config, "html", path, OUTPUT_HTML);
	if (!rc)
		rc = rh_file_write_whole(path, page.bytes, page.length);
	if (!rc)
		rh_note("written to %s", path);
	rh_text_free(&page);
	return rc;
}

int verb_report(int argc, char **argv)
{
	struct asked asked = {0};
	if (argc == 1 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
		fputs(usage, stdout);
		return 0;
	}
	int rc = read_words(argc, argv, &asked);
	if (rc)
		return rc;
	char *own = asked.config.html ? NULL : rh_path_join(asked.dir[0], RH_PAGE_NAME);
	rc = asked.config.html || own ? write_page(&asked, own ? own : asked.config.html) : -ENOMEM;
	rh_free(own);
	return rc;
}
