#include "cli/modelfile.h"

#include "cli/output.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <string.h>

int verb_write_modelfile(const char *outfile, int force)
{
	const char *slash = strrchr(outfile, '/'), *name = slash ? slash + 1 : outfile;
	const struct rh_config none = {.force = force};
	struct rh_text path = {0}, text = {0};
	int rc = rh_text_printf(&path, "%.*sModelfile", (int)(name - outfile), outfile);
	if (rc)
		goto out;
	rc = verb_check_output(&none, "Modelfile", path.bytes, OUTPUT_MODELFILE);
	if (rc == -ENOMEM)
		goto out;
	if (rc) { /* nobody asked for this file by name: no reason to fail */
		rh_note("%s; it is left alone: for Ollama, one needs the line FROM ./%s", rh_error(rc), name);
		rh_error_clear();
		rc = 0;
		goto out;
	}
	rc = rh_text_printf(&text, "# " OUTPUT_MARK " wrote this: ollama create NAME -f %s\nFROM ./%s\n", path.bytes, name);
	if (!rc)
		rc = rh_file_write_whole(path.bytes, text.bytes, text.length);
	if (!rc)
		rh_note("for Ollama: ollama create NAME -f %s", path.bytes);
out:
	rh_text_free(&path);
	rh_text_free(&text);
	return rc;
}
