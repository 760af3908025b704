// Makes an OCI image archive of programs that need no file beside them: no registry, no Docker.
//
//	pack OUT.tar NAME:TAG=PROGRAM[,ARGUMENT...]...
//
// `ctr --namespace k8s.io images import OUT.tar` loads it.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const oci = "application/vnd.oci.image."

type object = map[string]any

// Blobs by their digest: an image of the same program shares its layer with the other.
type archive struct {
	blobs     map[string][]byte
	manifests []object
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: pack OUT.tar NAME:TAG=PROGRAM[,ARGUMENT...]...")
	}
	a := archive{blobs: map[string][]byte{}}
	for _, image := range os.Args[2:] {
		name, command, ok := strings.Cut(image, "=")
		if !ok {
			log.Fatalf("pack: %q has no =", image)
		}
		words := strings.Split(command, ",")
		if err := a.add(name, words[0], words[1:]); err != nil {
			log.Fatal(err)
		}
	}
	if err := a.write(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func (a *archive) add(name, program string, arguments []string) error {
	file := "/" + filepath.Base(program)
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := put(tw, file[1:], 0o755, content); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	// Not compressed: it only goes from disk to disk.
	rootfs := a.put("layer.v1.tar", layer.Bytes())
	config, err := a.putJSON("config.v1+json", object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": append([]string{file}, arguments...)},
		"rootfs": object{"type": "layers", "diff_ids": []any{rootfs["digest"]}},
	})
	if err != nil {
		return err
	}
	manifest, err := a.putJSON("manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []object{rootfs},
	})
	if err != nil {
		return err
	}
	manifest["annotations"] = object{"io.containerd.image.name": name}
	manifest["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	a.manifests = append(a.manifests, manifest)
	return nil
}

// Its descriptor.
func (a *archive) put(kind string, blob []byte) object {
	digest := fmt.Sprintf("%x", sha256.Sum256(blob))
	a.blobs[digest] = blob
	return object{"mediaType": oci + kind, "digest": "sha256:" + digest, "size": len(blob)}
}

func (a *archive) putJSON(kind string, value object) (object, error) {
	blob, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return a.put(kind, blob), nil
}

func (a *archive) write(path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": a.manifests})
	if err != nil {
		return err
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for digest, blob := range a.blobs {
		files["blobs/sha256/"+digest] = blob
	}
	tw := tar.NewWriter(out)
	for name, content := range files {
		if err := put(tw, name, 0o644, content); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return out.Close()
}

func put(tw *tar.Writer, name string, mode int64, content []byte) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}
