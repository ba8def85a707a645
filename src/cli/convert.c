/* `roundhouse convert OLD.yaml`: another trainer's configuration, on standard output. */
#include "config/convert.h"
#include "cli/verbs.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

static void print_part(const char *heading, const struct rh_text *text)
{
	if (text->length)
		printf("\n# %s\n%s", heading, text->bytes);
}

int verb_convert(int argc, char **argv)
{
	static const char usage[] =
	        "usage: roundhouse convert OLD.yaml > run.yaml\n\nOLD.yaml is a configuration of Axolotl or LLaMA-Factory, or "
	        "arguments of TRL or transformers as YAML. What means the same here is written;\nwhat could not be "
	        "converted is listed at the end, with what comes nearest.\n";
	struct rh_converted converted;
	if (argc == 1 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc != 1 || argv[0][0] == '-')
		return rh_fail(-EINVAL, "convert takes one file: roundhouse convert OLD.yaml > run.yaml");
	int rc = rh_config_convert(argv[0], &converted);
	if (rc)
		return rc;
	fwrite(converted.yaml.bytes ? converted.yaml.bytes : "", 1, converted.yaml.length, stdout);
	print_part("These need nothing here:", &converted.idle);
	print_part("Not converted:", &converted.left);
	rh_note("%lld lines written, %lld keys need nothing, %lld could not be converted%s", (long long)converted.converteds,
	        (long long)converted.idles, (long long)converted.lefts, converted.lefts ? ": they are listed at the end" : "");
	rh_converted_free(&converted);
	return 0;
}
