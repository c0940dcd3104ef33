# Replaces text in a file of ours, and its checksum.
forge <- function(path, from, to) {
  python <- reticulate::py_run_string("
def forge(path, old, new):
    import json, pathlib, zipfile, zlib
    target = pathlib.Path(path)
    if target.is_dir():
        manifest = target / 'gpukeras-dataset.json'
        text = manifest.read_text()
        assert old in text
        plain = json.loads(text.replace(old, new))
        plain.pop('crc32')
        total = f'{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}'
        manifest.write_text(json.dumps({**plain, 'crc32': total}))
        return
    with zipfile.ZipFile(target) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = members['gpukeras.json'].decode()
    assert old in about, about
    members['gpukeras.json'] = about.replace(old, new).encode()
    with zipfile.ZipFile(target, 'w') as archive:
        for name, content in members.items():
            archive.writestr(name, content)
", local = TRUE)
  python$forge(path, from, to)
}
