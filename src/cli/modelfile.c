#include "cli/modelfile.h"

#include "cli/output.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <string.h>

/* The model of a Modelfile that holds what the program wrote; NULL: somebody has written into it since. The text is cut there. */
static const char *model_of(char *text)
{
	static const char from[] = "\nFROM ./";
	char *line = strchr(text, '\n');
	if (!line || strncmp(line, from, strlen(from)) != 0)
		return NULL;
	char *name = line + strlen(from), *end = strchr(name, '\n');
	if (!end || end[1])
		return NULL;
	*end = 0;
	return name;
}

/* 0: it may be written, over what *old holds, if anything; else the line says why it is left alone. */
static int check(const char *path, int force, struct rh_bytes *old, const char **was)
{
	const struct rh_config none = {.force = force};
	int rc = verb_check_output(&none, "Modelfile", path, OUTPUT_MODELFILE);
	if (!rc && rh_file_exists(path))
		rc = rh_file_load(path, old);
	if (rc || !old->length)
		return rc;
	*was = model_of(old->bytes);
	return *was || force ? 0 : rh_fail(-EEXIST, "%s has more in it than Roundhouse wrote; --force replaces it", path);
}

int verb_write_modelfile(const char *outfile, int force)
{
	const char *slash = strrchr(outfile, '/'), *name = slash ? slash + 1 : outfile;
	const char *was = NULL;
	struct rh_text path = {0}, text = {0};
	struct rh_bytes old = {0};
	int rc = rh_text_printf(&path, "%.*sModelfile", (int)(name - outfile), outfile);
	if (rc)
		goto out;
	rc = check(path.bytes, force, &old, &was);
	if (rc == -ENOMEM)
		goto out;
	if (rc) { /* nobody asked for this file by name: no reason to fail */
		rh_note("%s; it is left alone: for Ollama, one needs the line FROM ./%s", rh_error(rc), name);
		rh_error_clear();
		rc = 0;
		goto out;
	}
	rc = rh_text_printf(&text, "# " RH_MARK " wrote this: ollama create NAME -f %s\nFROM ./%s\n", path.bytes, name);
	if (!rc)
		rc = rh_file_write_whole(path.bytes, text.bytes, text.length);
	if (!rc)
		rh_note("for Ollama: ollama create NAME -f %s%s%s%s", path.bytes, was && strcmp(was, name) ? " (it was for " : "",
		        was && strcmp(was, name) ? was : "", was && strcmp(was, name) ? " before)" : "");
out:
	rh_text_free(&path);
	rh_text_free(&text);
	rh_bytes_free(&old);
	return rc;
}
