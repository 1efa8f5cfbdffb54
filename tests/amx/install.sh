#!/usr/bin/env bash
# Makes a PC with AMX in a folder: Bochs, which interprets a Sapphire Rapids, and Debian's Linux and Python for it.
#
#     tests/amx/install.sh FOLDER PYTHON      PYTHON: of this machine, with pip
#
# Needs apt of Debian or Ubuntu, a C++ compiler, make and mkfs.ext4, but not root.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1") python=$(realpath -s "$2") here=$(realpath "$(dirname "$0")")
for tool in g++ make xz cpio mkfs.ext4; do
  command -v $tool >/dev/null || { echo "make test-amx: there is no $tool here" >&2; exit 1; }
done
"$here/../arm64/install.sh" "$folder" "$python" amd64 \
  linux-image-cloud-amd64 bochsbios vgabios isolinux syslinux-common xorriso busybox-static
cd "$folder"
mv site root/

echo "Building Bochs (a few minutes)…"
"$python" - <<'PYTHON'
import hashlib, pathlib, urllib.request
archive = urllib.request.urlopen("http://deb.debian.org/debian/pool/main/b/bochs/bochs_3.0%2bdfsg.orig.tar.xz").read()
assert hashlib.sha256(archive).hexdigest() == "78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b"
pathlib.Path("bochs.tar.xz").write_bytes(archive)
PYTHON
mkdir bochs
tar --extract --file bochs.tar.xz --directory bochs --strip-components 1
"$python" "$here/correct_bochs.py" bochs
(cd bochs
 CXXFLAGS="-O3 -march=native" ./configure --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx \
   --enable-all-optimizations --disable-docbook --with-nogui
 make --jobs 2) >bochs.log 2>&1 || { tail -n 20 bochs.log >&2; exit 1; }

# What boots: a CD with the kernel, and a first file system with the drivers that mount the disk.
mkdir -p first/{bin,proc,sys,dev,new} disc
for driver in scsi/scsi_common scsi/scsi_mod scsi/sd_mod ata/libata ata/ata_piix; do
  cp root/lib/modules/*/kernel/drivers/$driver.ko first/
done
cp root/bin/busybox first/bin/
cat >first/init <<'INIT'
#!/bin/busybox sh
PATH=/bin
for tool in mount insmod usleep switch_root; do busybox ln -s busybox /bin/$tool; done
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devices /dev
for driver in scsi_common scsi_mod sd_mod libata ata_piix; do insmod /$driver.ko; done
while [ ! -b /dev/sda ]; do usleep 100000; done
mount -t ext4 /dev/sda /new
for place in dev proc sys; do mount --move /$place /new/$place; done
exec switch_root /new /start
INIT
chmod +x first/init
(cd first && find . | cpio --quiet --create --format newc) | gzip >disc/first
cp root/boot/vmlinuz-* disc/linux
cp root/usr/lib/ISOLINUX/isolinux.bin root/usr/lib/syslinux/modules/bios/ldlinux.c32 disc/
# Bochs's short string moves never end in the kernel's copies of nothing (fsrm). The rest saves time.
cat >disc/isolinux.cfg <<'MENU'
DEFAULT linux
LABEL linux
 KERNEL linux
 APPEND initrd=first console=ttyS0 quiet clearcpuid=580 mitigations=off no5lvl nopti tsc=reliable lpj=1000000
MENU
LD_LIBRARY_PATH=root/usr/lib/x86_64-linux-gnu root/usr/bin/xorriso -as mkisofs -quiet -o boot.iso -b isolinux.bin \
  -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table disc
cp root/usr/share/bochs/BIOS-bochs-latest root/usr/share/vgabios/vgabios.bin .
rm -r bochs.tar.xz first disc root/boot root/lib/modules
