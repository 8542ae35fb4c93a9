export interface N8nInstall {
  version: string;
  /** Folder with `bin/node`. */
  nodeHome: string;
  /** Folder that contains n8n's `node_modules`. */
  folder: string;
}

export interface N8nServer {
  url: string;
  port: number;
  pid: number;
  userFolder: string;
  log(): string;
  /** SIGSTOP and SIGCONT freeze it and let it go on. */
  signal(name: NodeJS.Signals): void;
  /** Ends it in order. */
  stop(): Promise<void>;
  /** Ends it by SIGKILL. */
  kill(): Promise<void>;
}

/** Starts one n8n process and waits until it can be used. */
export function startN8n(options: {
  install: N8nInstall;
  userFolder: string;
  /** Default: start. */
  command?: 'start' | 'worker';
  port?: number;
  env?: Record<string, string>;
}): Promise<N8nServer>;
