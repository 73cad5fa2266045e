//! Pictures to read: JPEGs of a given size, which take as long to decode as photographs of that size.

use std::fs;
use std::path::{Path, PathBuf};

use dlio_fs::error::{Context, Error, Result};
use dlio_fs::path::Show as _;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use resize::{Pixel, Resizer, Type};
use rgb::{FromSlice, RGB8};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::StopFlag;

/// How many pictures are drawn. Further files have the pixels of one of these, and their own comment.
const DRAWN: usize = 128;
/// Files per directory.
const PER_DIR: usize = 256;
/// The side that pictures are resized to, as for most networks.
const SIDE: usize = 224;
const QUALITY: u8 = 85;
/// The amplitude of the noise over the gradients: it gives about 0.6 bytes per pixel, as in the photographs of ImageNet
/// (110 kB, 500 x 375).
const NOISE: i32 = 17;
/// Sizes are spread evenly from 70 to 130 % of the middle one.
const SPREAD: f64 = 0.3;

/// Encoded pictures with a middle size of about `size` bytes. The same for the same arguments.
#[derive(Debug)]
pub(crate) struct Pictures {
    drawn: Vec<Vec<u8>>,
}

impl Pictures {
    pub(crate) fn draw(count: usize, size: usize, stop: &StopFlag) -> Result<Pictures> {
        let mut random = SmallRng::seed_from_u64(7);
        // The cost per pixel is measured first; headers and tables cost the same for any size.
        let mut cost = |side| encode(&gradients(side, side, &mut random)).map(|bytes| bytes.len() as f64);
        let (small, large) = (cost(128)?, cost(512)?);
        let (few, many) = (128.0 * 128.0, 512.0 * 512.0);
        let per_pixel = (large - small) / (many - few);
        let fixed = (small - per_pixel * few).max(0.0);
        let count = count.min(DRAWN);
        let mut drawn = Vec::with_capacity(count);
        for number in 0..count {
            stop.check()?;
            // An order without a trend: 61 has no factor in common with 128.
            let share = ((number * 61) % DRAWN) as f64 / (DRAWN - 1) as f64;
            let wanted = size as f64 * (1.0 - SPREAD + 2.0 * SPREAD * share);
            let pixels = ((wanted - fixed) / per_pixel).max(64.0);
            let width = (pixels * 4.0 / 3.0).sqrt().round().clamp(8.0, 60_000.0) as u16;
            let height = (pixels / f64::from(width)).round().clamp(8.0, 60_000.0) as u16;
            drawn.push(encode(&gradients(width, height, &mut random))?);
        }
        Ok(Pictures { drawn })
    }

    /// The bytes of file number `number`: no two are the same.
    fn file(&self, number: usize) -> Vec<u8> {
        let picture = &self.drawn[number % self.drawn.len()];
        // A comment follows the marker that begins a picture: its marker, length and text.
        let text = format!("{number:08}");
        let length = (text.len() as u16 + 2).to_be_bytes();
        [&picture[..2], &[0xFF, 0xFE], &length, text.as_bytes(), &picture[2..]].concat()
    }

    /// Writes `count` files below a directory; returns their paths relative to it.
    pub(crate) fn write(&self, dir: &Path, count: usize, stop: &StopFlag) -> Result<Vec<PathBuf>> {
        let paths: Vec<_> =
            (0..count).map(|number| PathBuf::from(format!("{:04}/{number:06}.jpg", number / PER_DIR))).collect();
        for (number, path) in paths.iter().enumerate() {
            stop.check()?;
            let path = dir.join(path);
            if let Some(dir) = path.parent().filter(|_| number % PER_DIR == 0) {
                fs::create_dir_all(dir).at("mkdir", dir.shown())?;
            }
            fs::write(&path, self.file(number)).at("write", path.shown())?;
        }
        Ok(paths)
    }

    /// The total size of `count` files.
    pub(crate) fn bytes(&self, count: usize) -> u64 {
        (0..count).map(|number| self.drawn[number % self.drawn.len()].len() as u64 + 12).sum()
    }
}

/// The red, green and blue bytes of each pixel, row by row.
struct Bitmap {
    width: u16,
    height: u16,
    bytes: Vec<u8>,
}

fn encode(picture: &Bitmap) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    let encoded = encoder.encode(&picture.bytes, picture.width, picture.height, ColorType::Rgb);
    encoded.map_err(|e| Error::refused(format!("no picture could be made: {e}"), "report this"))?;
    Ok(bytes)
}

/// Slowly changing colours, like skies and walls, with noise over them.
fn gradients(width: u16, height: u16, random: &mut SmallRng) -> Bitmap {
    let corner = [0, 1, 2].map(|_| random.random_range(40..200));
    let slope = [0, 1, 2].map(|_| (random.random_range(-40..40), random.random_range(-40..40)));
    let mut bytes = Vec::with_capacity(3 * usize::from(width) * usize::from(height));
    for y in 0..i32::from(height) {
        for x in 0..i32::from(width) {
            let noise = random.random_range(-NOISE..=NOISE);
            bytes.extend((0..3).map(|c| {
                let (dx, dy) = slope[c];
                (corner[c] + dx * x / i32::from(width) + dy * y / i32::from(height) + noise).clamp(0, 255) as u8
            }));
        }
    }
    Bitmap { width, height, bytes }
}

/// Decodes a picture and resizes it to 224 x 224, as a training job does.
pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<()> {
    let unreadable = |e: &dyn std::fmt::Display| {
        Error::refused(format!("{} is not a picture that can be decoded: {e}", path.shown()), "see the disk")
    };
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|e| unreadable(&e))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| unreadable(&"it has no size"))?;
    let resizer = Resizer::new(width, height, SIDE, SIDE, Pixel::RGB8, Type::Triangle);
    let mut small = vec![RGB8::default(); SIDE * SIDE];
    resizer.and_then(|mut resizer| resizer.resize(pixels.as_rgb(), &mut small)).map_err(|e| unreadable(&e))?;
    std::hint::black_box(small);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_the_wanted_sizes_and_can_be_decoded() {
        for size in [12 << 10, 40 << 10] {
            let pictures = Pictures::draw(32, size, &StopFlag::default()).expect("drawn");
            let mut sizes: Vec<_> = pictures.drawn.iter().map(Vec::len).collect();
            sizes.sort_unstable();
            let middle = sizes[sizes.len() / 2] as f64 / size as f64;
            assert!((0.85..1.15).contains(&middle), "{middle}");
            assert!(*sizes.first().expect("some") < size * 8 / 10 && *sizes.last().expect("some") > size * 12 / 10);
            decode(&pictures.file(3), Path::new("3")).expect("decoded");
        }
    }

    #[test]
    fn files_differ_and_are_the_same_in_each_run() {
        let [one, again] = [(), ()].map(|()| Pictures::draw(2, 8 << 10, &StopFlag::default()).expect("drawn"));
        assert_ne!(one.file(0), one.file(2));
        assert_eq!(one.file(5), again.file(5));
        let dir = tempfile::tempdir().expect("a directory");
        let paths = one.write(dir.path(), 300, &StopFlag::default()).expect("written");
        let bytes: u64 = paths.iter().map(|path| dir.path().join(path).metadata().expect("stat").len()).sum();
        assert_eq!((paths.len(), bytes), (300, one.bytes(300)));
        assert!(decode(b"no picture", Path::new("x")).is_err());
    }
}
