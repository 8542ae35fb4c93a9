export const ROOT: string;

/** Packs this project (which must be built). */
export function packPackage(destination: string): Promise<{ tarball: string; files: string[]; unpackedSize: number }>;

/** What is wrong with a packed package, in words. */
export function complaintsAbout(packed: { files: string[]; unpackedSize: number }): string[];

/** Installs a tarball into an n8n user folder, as its users do. */
export function installForN8n(userFolder: string, tarball: string, nodeHome: string): Promise<void>;
